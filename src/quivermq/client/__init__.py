"""The client: everything outside the brokers talks to them through this.

Knows `wire` and `batches`; must never know what brokers are made of.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.client.aio_client import AsyncClient
    from quivermq.client.aio_subscriptions import AsyncSubscription
    from quivermq.client.client import Client, connect
    from quivermq.client.copying import HeldBatches
    from quivermq.client.decoding import SCHEMA
    from quivermq.client.deliveries import Delivery
    from quivermq.client.group_infos import (
        DeadLetter,
        DelayedInfo,
        GroupInfo,
        GroupPartitionInfo,
        MemberInfo,
    )
    from quivermq.client.hauls import LEASED_SCHEMA
    from quivermq.client.infos import (
        ClusterInfo,
        LevelInfo,
        NodeInfo,
        PartitionInfo,
        RateLimit,
        RebalanceInfo,
        Retention,
        Retry,
        TopicInfo,
        UpgradeInfo,
    )
    from quivermq.client.leased import AsyncLeasedMessage, LeasedMessage
    from quivermq.client.leased_tables import AsyncLeasedTable, LeasedTable
    from quivermq.client.offsets import Held, TopicOffsets
    from quivermq.client.partitioner import partition_of
    from quivermq.client.producer import AsyncProducer, Producer
    from quivermq.client.readers import AsyncReader, Piece, Reader
    from quivermq.client.reading import parse_place
    from quivermq.client.sticky_consumer import AsyncConsumer, Consumer
    from quivermq.client.subscriptions import Subscription
    from quivermq.client.values import BatchReceipt, Message, Receipt

# By module, so that whoever needs one part (a broker needs a door) does not load them all.
_PLACES = {
    "LEASED_SCHEMA": "hauls",
    "SCHEMA": "decoding",
    "AsyncClient": "aio_client",
    "AsyncLeasedMessage": "leased",
    "AsyncLeasedTable": "leased_tables",
    "AsyncConsumer": "sticky_consumer",
    "AsyncProducer": "producer",
    "AsyncReader": "readers",
    "AsyncSubscription": "aio_subscriptions",
    "BatchReceipt": "values",
    "Client": "client",
    "ClusterInfo": "infos",
    "DeadLetter": "group_infos",
    "DelayedInfo": "group_infos",
    "Consumer": "sticky_consumer",
    "Delivery": "deliveries",
    "GroupInfo": "group_infos",
    "GroupPartitionInfo": "group_infos",
    "LeasedMessage": "leased",
    "LeasedTable": "leased_tables",
    "MemberInfo": "group_infos",
    "Message": "values",
    "NodeInfo": "infos",
    "PartitionInfo": "infos",
    "Piece": "readers",
    "Producer": "producer",
    "RateLimit": "infos",
    "Reader": "readers",
    "LevelInfo": "infos",
    "RebalanceInfo": "infos",
    "UpgradeInfo": "infos",
    "Receipt": "values",
    "Retention": "infos",
    "Held": "offsets",
    "HeldBatches": "copying",
    "Retry": "infos",
    "Subscription": "subscriptions",
    "TopicInfo": "infos",
    "TopicOffsets": "offsets",
    "connect": "client",
    "parse_place": "reading",
    "partition_of": "partitioner",
}

__all__ = [
    "LEASED_SCHEMA",
    "SCHEMA",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncLeasedMessage",
    "AsyncLeasedTable",
    "AsyncProducer",
    "AsyncReader",
    "AsyncSubscription",
    "BatchReceipt",
    "Client",
    "ClusterInfo",
    "Consumer",
    "DeadLetter",
    "DelayedInfo",
    "Delivery",
    "GroupInfo",
    "GroupPartitionInfo",
    "Held",
    "HeldBatches",
    "LeasedMessage",
    "LeasedTable",
    "LevelInfo",
    "MemberInfo",
    "Message",
    "NodeInfo",
    "PartitionInfo",
    "Piece",
    "Producer",
    "RateLimit",
    "Reader",
    "RebalanceInfo",
    "Receipt",
    "Retention",
    "Retry",
    "Subscription",
    "TopicInfo",
    "TopicOffsets",
    "UpgradeInfo",
    "connect",
    "parse_place",
    "partition_of",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_PLACES[name]}", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value
