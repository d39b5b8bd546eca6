"""The client: everything outside the brokers talks to them through this.

Knows `wire` and `batches`; must never know what brokers are made of.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.client.aio_client import AsyncClient
    from quivermq.client.asyncio_transport import (
        AsyncioConnection,
        AsyncioLimiter,
        AsyncioTransport,
        first_answered,
    )
    from quivermq.client.backup_access import BackupAccess
    from quivermq.client.client import Client, connect, open_client
    from quivermq.client.cluster_map import Route
    from quivermq.client.connect_options import ConnectOptions, parse_servers
    from quivermq.client.core import Core
    from quivermq.client.cursor import parse_place
    from quivermq.client.dead_letter_admin import REDRIVE_TARGETS, letter_filter
    from quivermq.client.decode import SCHEMA, messages_of
    from quivermq.client.group_models import (
        ARCHIVE_PREFIX,
        DeadLetter,
        DelayedInfo,
        GroupInfo,
        GroupPartitionInfo,
        InFlightInfo,
        MemberInfo,
        Redriven,
        group_infos,
    )
    from quivermq.client.models import (
        UNCHANGED,
        BatchReceipt,
        ClusterInfo,
        LevelInfo,
        Message,
        NodeInfo,
        PartitionInfo,
        RateLimit,
        RebalanceInfo,
        Receipt,
        Retention,
        Retry,
        TopicInfo,
        UpgradeInfo,
    )
    from quivermq.client.offsets import Held, TopicOffsets
    from quivermq.client.producer.bulk import BulkColumns, Layout
    from quivermq.client.producer.copy import BatchCache
    from quivermq.client.producer.delivery import BatchDelivery, Delivery
    from quivermq.client.producer.message_options import with_properties
    from quivermq.client.producer.partitioner import partition_of, rows_by_partition
    from quivermq.client.producer.produce import not_before_ms
    from quivermq.client.producer.producer import AsyncProducer, Producer
    from quivermq.client.reader import AsyncReader, ReadChunk, Reader
    from quivermq.client.retry import Attempts
    from quivermq.client.router import ROUTE_SECONDS_MAX, Router, Target
    from quivermq.client.shared.aio_subscription import AsyncSubscription
    from quivermq.client.shared.consumer import SharedConsumer
    from quivermq.client.shared.leased_message import AsyncLeasedMessage, LeasedMessage
    from quivermq.client.shared.leased_table import AsyncLeasedTable, LeasedTable
    from quivermq.client.shared.leases import Lease, failed_terms
    from quivermq.client.shared.poll_result import LEASED_SCHEMA, messages_of_runs
    from quivermq.client.shared.subscription import Subscription
    from quivermq.client.sticky.consumer import AsyncConsumer, Consumer
    from quivermq.client.sticky.several_members import TopicPartition
    from quivermq.client.stop_signals import stop_on_signals
    from quivermq.client.topic_choice import TopicChoice
    from quivermq.client.transport import Connection, Reply
    from quivermq.client.user_admin import AsyncUsers, GrantInfo, UserInfo, Users

# By module, so that a user of one part (a broker needs a transport) does not load them all.
_PLACES = {
    "ARCHIVE_PREFIX": "group_models",
    "AsyncioConnection": "asyncio_transport",
    "AsyncioLimiter": "asyncio_transport",
    "first_answered": "asyncio_transport",
    "ConnectOptions": "connect_options",
    "Connection": "transport",
    "LEASED_SCHEMA": "shared.poll_result",
    "SCHEMA": "decode",
    "UNCHANGED": "models",
    "BulkColumns": "producer.bulk",
    "Core": "core",
    "Attempts": "retry",
    "ROUTE_SECONDS_MAX": "router",
    "Route": "cluster_map",
    "Router": "router",
    "Target": "router",
    "Layout": "producer.bulk",
    "Reply": "transport",
    "SharedConsumer": "shared.consumer",
    "messages_of": "decode",
    "messages_of_runs": "shared.poll_result",
    "not_before_ms": "producer.produce",
    "parse_servers": "connect_options",
    "AsyncClient": "aio_client",
    "AsyncLeasedMessage": "shared.leased_message",
    "AsyncLeasedTable": "shared.leased_table",
    "AsyncConsumer": "sticky.consumer",
    "AsyncProducer": "producer.producer",
    "AsyncReader": "reader",
    "AsyncSubscription": "shared.aio_subscription",
    "AsyncioTransport": "asyncio_transport",
    "BatchDelivery": "producer.delivery",
    "BatchReceipt": "models",
    "Client": "client",
    "open_client": "client",
    "ClusterInfo": "models",
    "DeadLetter": "group_models",
    "REDRIVE_TARGETS": "dead_letter_admin",
    "letter_filter": "dead_letter_admin",
    "DelayedInfo": "group_models",
    "Consumer": "sticky.consumer",
    "Delivery": "producer.delivery",
    "GroupInfo": "group_models",
    "Redriven": "group_models",
    "GroupPartitionInfo": "group_models",
    "InFlightInfo": "group_models",
    "Lease": "shared.leases",
    "failed_terms": "shared.leases",
    "LeasedMessage": "shared.leased_message",
    "LeasedTable": "shared.leased_table",
    "MemberInfo": "group_models",
    "Message": "models",
    "NodeInfo": "models",
    "PartitionInfo": "models",
    "ReadChunk": "reader",
    "Producer": "producer.producer",
    "RateLimit": "models",
    "Reader": "reader",
    "LevelInfo": "models",
    "RebalanceInfo": "models",
    "UpgradeInfo": "models",
    "AsyncUsers": "user_admin",
    "BackupAccess": "backup_access",
    "GrantInfo": "user_admin",
    "UserInfo": "user_admin",
    "Users": "user_admin",
    "Receipt": "models",
    "Retention": "models",
    "Held": "offsets",
    "BatchCache": "producer.copy",
    "Retry": "models",
    "Subscription": "shared.subscription",
    "TopicInfo": "models",
    "TopicOffsets": "offsets",
    "TopicChoice": "topic_choice",
    "TopicPartition": "sticky.several_members",
    "connect": "client",
    "parse_place": "cursor",
    "partition_of": "producer.partitioner",
    "rows_by_partition": "producer.partitioner",
    "stop_on_signals": "stop_signals",
    "group_infos": "group_models",
    "with_properties": "producer.message_options",
}

__all__ = [
    "ARCHIVE_PREFIX",
    "LEASED_SCHEMA",
    "REDRIVE_TARGETS",
    "ROUTE_SECONDS_MAX",
    "SCHEMA",
    "UNCHANGED",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncLeasedMessage",
    "AsyncLeasedTable",
    "AsyncProducer",
    "AsyncReader",
    "AsyncSubscription",
    "AsyncUsers",
    "AsyncioConnection",
    "AsyncioLimiter",
    "AsyncioTransport",
    "Attempts",
    "BackupAccess",
    "BatchCache",
    "BatchDelivery",
    "BatchReceipt",
    "BulkColumns",
    "Client",
    "ClusterInfo",
    "ConnectOptions",
    "Connection",
    "Consumer",
    "Core",
    "DeadLetter",
    "DelayedInfo",
    "Delivery",
    "GrantInfo",
    "GroupInfo",
    "GroupPartitionInfo",
    "Held",
    "InFlightInfo",
    "Layout",
    "Lease",
    "LeasedMessage",
    "LeasedTable",
    "LevelInfo",
    "MemberInfo",
    "Message",
    "NodeInfo",
    "PartitionInfo",
    "Producer",
    "RateLimit",
    "ReadChunk",
    "Reader",
    "RebalanceInfo",
    "Receipt",
    "Redriven",
    "Reply",
    "Retention",
    "Retry",
    "Route",
    "Router",
    "SharedConsumer",
    "Subscription",
    "Target",
    "TopicChoice",
    "TopicInfo",
    "TopicOffsets",
    "TopicPartition",
    "UpgradeInfo",
    "UserInfo",
    "Users",
    "connect",
    "failed_terms",
    "first_answered",
    "group_infos",
    "letter_filter",
    "messages_of",
    "messages_of_runs",
    "not_before_ms",
    "open_client",
    "parse_place",
    "parse_servers",
    "partition_of",
    "rows_by_partition",
    "stop_on_signals",
    "with_properties",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_PLACES[name]}", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value
