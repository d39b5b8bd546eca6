"""QuiverMQ: a message queue whose log holds Apache Arrow record batches.

>>> import quivermq
>>> client = quivermq.connect("127.0.0.1:7600")
>>> client.produce("orders", b"an order")
Receipt(topic='orders', partition=0, offset=0)
>>> [message.value for message in client.read("orders")]
[b'an order']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quivermq.errors import (
    ConnectionFailed,
    Corrupt,
    Fenced,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    Overloaded,
    QuiverError,
    SequenceReused,
    StorageFailed,
    StorageFull,
    StoredBefore,
    Timeout,
    TooLarge,
    TopicExists,
    TopicNotFound,
    Unauthenticated,
    UnknownError,
    UnsupportedFormat,
)

if TYPE_CHECKING:
    from quivermq import aio, spark, testing
    from quivermq.client import (
        BatchDelivery,
        BatchReceipt,
        Client,
        ClusterInfo,
        Consumer,
        DeadLetter,
        DelayedInfo,
        Delivery,
        GrantInfo,
        GroupInfo,
        GroupPartitionInfo,
        InFlightInfo,
        LeasedMessage,
        LeasedTable,
        LevelInfo,
        MemberInfo,
        Message,
        NodeInfo,
        PartitionInfo,
        Producer,
        RateLimit,
        Reader,
        RebalanceInfo,
        Receipt,
        Redriven,
        Retention,
        Retry,
        Subscription,
        TopicInfo,
        TopicPartition,
        UpgradeInfo,
        UserInfo,
        connect,
        stop_on_signals,
    )

__version__ = "0.3.0.dev0"

__all__ = [
    "BatchDelivery",
    "BatchReceipt",
    "Client",
    "ClusterInfo",
    "ConnectionFailed",
    "Consumer",
    "Corrupt",
    "DeadLetter",
    "DelayedInfo",
    "Delivery",
    "Fenced",
    "Forbidden",
    "GrantInfo",
    "GroupInfo",
    "GroupPartitionInfo",
    "InFlightInfo",
    "InvalidRequest",
    "LeaseLost",
    "LeasedMessage",
    "LeasedTable",
    "LevelInfo",
    "MemberInfo",
    "Message",
    "NodeInfo",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetOutOfRange",
    "OutOfSequence",
    "Overloaded",
    "PartitionInfo",
    "Producer",
    "QuiverError",
    "RateLimit",
    "Reader",
    "RebalanceInfo",
    "Receipt",
    "Redriven",
    "Retention",
    "Retry",
    "SequenceReused",
    "StorageFailed",
    "StorageFull",
    "StoredBefore",
    "Subscription",
    "Timeout",
    "TooLarge",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicPartition",
    "Unauthenticated",
    "UnknownError",
    "UnsupportedFormat",
    "UpgradeInfo",
    "UserInfo",
    "aio",
    "connect",
    "spark",
    "stop_on_signals",
    "testing",
]

_MODULES = ("aio", "spark", "testing")


def __getattr__(name: str) -> Any:
    """Arrow and all that takes a while to import: loaded when a name is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(import_module(f"{__name__}.client"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
