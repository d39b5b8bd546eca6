from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_MESSAGES: _ClassVar[Format]
    FORMAT_ARROW: _ClassVar[Format]

class Start(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_EARLIEST: _ClassVar[Start]
    START_LATEST: _ClassVar[Start]
FORMAT_MESSAGES: Format
FORMAT_ARROW: Format
START_EARLIEST: Start
START_LATEST: Start

class Error(_message.Message):
    __slots__ = ("code", "message", "retriable", "leader", "leader_address", "earliest", "end", "expected", "lost")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retriable: bool
    leader: int
    leader_address: str
    earliest: int
    end: int
    expected: int
    lost: _containers.RepeatedCompositeFieldContainer[Selection]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retriable: bool = ..., leader: _Optional[int] = ..., leader_address: _Optional[str] = ..., earliest: _Optional[int] = ..., end: _Optional[int] = ..., expected: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("retention_ms", "retention_messages", "retention_bytes", "delete_acked", "keep_until_archived", "rate_per_second", "rate_burst", "max_deliveries", "dead_letter", "retry_first_ms", "retry_base_ms", "retry_longest_ms", "group_idle_ms", "drop_expired")
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELETE_ACKED_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNTIL_ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_BASE_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_LONGEST_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    DROP_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    retention_ms: int
    retention_messages: int
    retention_bytes: int
    delete_acked: bool
    keep_until_archived: bool
    rate_per_second: float
    rate_burst: int
    max_deliveries: int
    dead_letter: str
    retry_first_ms: int
    retry_base_ms: int
    retry_longest_ms: int
    group_idle_ms: int
    drop_expired: bool
    def __init__(self, retention_ms: _Optional[int] = ..., retention_messages: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., delete_acked: bool = ..., keep_until_archived: bool = ..., rate_per_second: _Optional[float] = ..., rate_burst: _Optional[int] = ..., max_deliveries: _Optional[int] = ..., dead_letter: _Optional[str] = ..., retry_first_ms: _Optional[int] = ..., retry_base_ms: _Optional[int] = ..., retry_longest_ms: _Optional[int] = ..., group_idle_ms: _Optional[int] = ..., drop_expired: bool = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "id", "replication", "settings", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    replication: int
    settings: TopicSettings
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ..., replication: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "leader", "replicas", "start_offset", "end_offset", "size_bytes", "trouble")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    start_offset: int
    end_offset: int
    size_bytes: int
    trouble: str
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "partitions", "replication", "settings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    replication: int
    settings: TopicSettings
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., replication: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("topic", "partitions", "settings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    settings: TopicSettings
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class AlterTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class NewMessage(_message.Message):
    __slots__ = ("value", "key", "headers", "priority", "delay_ms", "timestamp_ms", "content_type", "ttl_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.ScalarMap[str, bytes]
    priority: int
    delay_ms: int
    timestamp_ms: int
    content_type: str
    ttl_ms: int
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., priority: _Optional[int] = ..., delay_ms: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., content_type: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("offset", "value", "key", "headers", "timestamp_ms", "priority", "delivery_count", "content_type")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    value: bytes
    key: bytes
    headers: _containers.ScalarMap[str, bytes]
    timestamp_ms: int
    priority: int
    delivery_count: int
    content_type: str
    def __init__(self, offset: _Optional[int] = ..., value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., timestamp_ms: _Optional[int] = ..., priority: _Optional[int] = ..., delivery_count: _Optional[int] = ..., content_type: _Optional[str] = ...) -> None: ...

class ArrowBatch(_message.Message):
    __slots__ = ("stream", "first_offset", "count", "timestamp_ms", "priority", "leased")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    stream: bytes
    first_offset: int
    count: int
    timestamp_ms: int
    priority: int
    leased: _containers.RepeatedCompositeFieldContainer[LeasedRange]
    def __init__(self, stream: _Optional[bytes] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., priority: _Optional[int] = ..., leased: _Optional[_Iterable[_Union[LeasedRange, _Mapping]]] = ...) -> None: ...

class LeasedRange(_message.Message):
    __slots__ = ("first_offset", "count", "delivery_count")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    count: int
    delivery_count: int
    def __init__(self, first_offset: _Optional[int] = ..., count: _Optional[int] = ..., delivery_count: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("topic", "partition", "messages", "arrow", "priority", "delay_ms", "producer")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    arrow: bytes
    priority: int
    delay_ms: int
    producer: Producer
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., arrow: _Optional[bytes] = ..., priority: _Optional[int] = ..., delay_ms: _Optional[int] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("id", "epoch", "sequence")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    sequence: int
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("stored", "positions")
    STORED_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    stored: _containers.RepeatedCompositeFieldContainer[Stored]
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, stored: _Optional[_Iterable[_Union[Stored, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("partition", "first_offset", "count", "timestamp_ms", "is_repeat")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEAT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first_offset: int
    count: int
    timestamp_ms: int
    is_repeat: bool
    def __init__(self, partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., is_repeat: bool = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class NewProducerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NewProducerResponse(_message.Message):
    __slots__ = ("id", "epoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "timestamp_ms", "latest", "max_messages", "max_bytes", "wait_ms", "format", "follower_ok")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_OK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    latest: bool
    max_messages: int
    max_bytes: int
    wait_ms: int
    format: Format
    follower_ok: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., latest: bool = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., format: _Optional[_Union[Format, str]] = ..., follower_ok: bool = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("messages", "batches", "next_offset", "start_offset", "end_offset")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    batches: _containers.RepeatedCompositeFieldContainer[ArrowBatch]
    next_offset: int
    start_offset: int
    end_offset: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[ArrowBatch, _Mapping]]] = ..., next_offset: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("topic", "group", "consumer", "max_messages", "max_bytes", "wait_ms", "visibility_ms", "format", "auto_ack", "start", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    consumer: str
    max_messages: int
    max_bytes: int
    wait_ms: int
    visibility_ms: int
    format: Format
    auto_ack: bool
    start: Start
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., consumer: _Optional[str] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., format: _Optional[_Union[Format, str]] = ..., auto_ack: bool = ..., start: _Optional[_Union[Start, str]] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("deliveries", "throttled_ms")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    throttled_ms: int
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., throttled_ms: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("topic", "partition", "lease", "messages", "batches", "reasons")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    lease: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    batches: _containers.RepeatedCompositeFieldContainer[ArrowBatch]
    reasons: _containers.RepeatedCompositeFieldContainer[FailureReason]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., lease: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[ArrowBatch, _Mapping]]] = ..., reasons: _Optional[_Iterable[_Union[FailureReason, _Mapping]]] = ...) -> None: ...

class FailureReason(_message.Message):
    __slots__ = ("start", "end", "reason")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    reason: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("lease", "offsets", "ranges")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    lease: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, lease: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("topic", "group", "selections")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    selections: _containers.RepeatedCompositeFieldContainer[Selection]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., selections: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("topic", "group", "selections", "delay_ms", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    selections: _containers.RepeatedCompositeFieldContainer[Selection]
    delay_ms: int
    reason: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., selections: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("topic", "group", "leases", "visibility_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    leases: _containers.RepeatedScalarFieldContainer[str]
    visibility_ms: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., leases: _Optional[_Iterable[str]] = ..., visibility_ms: _Optional[int] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("topic", "group", "selections", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    selections: _containers.RepeatedCompositeFieldContainer[Selection]
    reason: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., selections: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class RejectResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("topic", "group", "selections")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    selections: _containers.RepeatedCompositeFieldContainer[Selection]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., selections: _Optional[_Iterable[_Union[Selection, _Mapping]]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("topic", "group", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommittedRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class CommittedResponse(_message.Message):
    __slots__ = ("offsets",)
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("topic", "group", "partitions", "earliest", "latest", "offset", "timestamp_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    earliest: bool
    latest: bool
    offset: int
    timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., earliest: bool = ..., latest: bool = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class SeekResponse(_message.Message):
    __slots__ = ("offsets",)
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "topic", "mode", "lag", "in_flight", "delayed", "done", "dead", "lost", "redelivered", "members", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    mode: str
    lag: int
    in_flight: int
    delayed: int
    done: int
    dead: int
    lost: int
    redelivered: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    partitions: _containers.RepeatedCompositeFieldContainer[GroupPartition]
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., mode: _Optional[str] = ..., lag: _Optional[int] = ..., in_flight: _Optional[int] = ..., delayed: _Optional[int] = ..., done: _Optional[int] = ..., dead: _Optional[int] = ..., lost: _Optional[int] = ..., redelivered: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[GroupPartition, _Mapping]]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("id", "name", "in_flight", "partitions")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    in_flight: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., in_flight: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupPartition(_message.Message):
    __slots__ = ("partition", "lag", "in_flight", "floor", "committed", "end_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    lag: int
    in_flight: int
    floor: int
    committed: int
    end_offset: int
    def __init__(self, partition: _Optional[int] = ..., lag: _Optional[int] = ..., in_flight: _Optional[int] = ..., floor: _Optional[int] = ..., committed: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: LetterFilter
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ...) -> None: ...

class LetterFilter(_message.Message):
    __slots__ = ("topic", "group", "reason", "key", "died_from_ms", "died_before_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    DIED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    reason: str
    key: bytes
    died_from_ms: int
    died_before_ms: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ..., key: _Optional[bytes] = ..., died_from_ms: _Optional[int] = ..., died_before_ms: _Optional[int] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetters]
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetters, _Mapping]]] = ...) -> None: ...

class DeadLetters(_message.Message):
    __slots__ = ("partition", "ranges", "topic")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    topic: str
    def __init__(self, partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., topic: _Optional[str] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("topic", "partition", "ranges", "filter", "to", "rate")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    filter: LetterFilter
    to: str
    rate: float
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., to: _Optional[str] = ..., rate: _Optional[float] = ...) -> None: ...

class RedriveResponse(_message.Message):
    __slots__ = ("messages", "stayed")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STAYED_FIELD_NUMBER: _ClassVar[int]
    messages: int
    stayed: int
    def __init__(self, messages: _Optional[int] = ..., stayed: _Optional[int] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("topic", "partition", "ranges", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    filter: LetterFilter
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("topic", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDelayedResponse(_message.Message):
    __slots__ = ("delayed",)
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    delayed: _containers.RepeatedCompositeFieldContainer[Delayed]
    def __init__(self, delayed: _Optional[_Iterable[_Union[Delayed, _Mapping]]] = ...) -> None: ...

class Delayed(_message.Message):
    __slots__ = ("partition", "first_offset", "count", "due_ms", "priority")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first_offset: int
    count: int
    due_ms: int
    priority: int
    def __init__(self, partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ..., due_ms: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class CancelDelayedRequest(_message.Message):
    __slots__ = ("topic", "partition", "ranges")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ...) -> None: ...

class CancelDelayedResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "leader", "node", "brokers")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    leader: int
    node: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    def __init__(self, cluster_id: _Optional[str] = ..., leader: _Optional[int] = ..., node: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("id", "address", "peer_address", "http_address", "alive", "leaders", "replicas", "state", "version", "zone", "machine")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    id: int
    address: str
    peer_address: str
    http_address: str
    alive: bool
    leaders: int
    replicas: int
    state: str
    version: str
    zone: str
    machine: str
    def __init__(self, id: _Optional[int] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ..., http_address: _Optional[str] = ..., alive: bool = ..., leaders: _Optional[int] = ..., replicas: _Optional[int] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., zone: _Optional[str] = ..., machine: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "hello", "produce", "subscribe", "credit", "unsubscribe", "ack", "nack", "extend", "reject", "release", "heartbeat")
    ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    id: int
    hello: Hello
    produce: ProduceRequest
    subscribe: Subscribe
    credit: Credit
    unsubscribe: Unsubscribe
    ack: AckRequest
    nack: NackRequest
    extend: ExtendRequest
    reject: RejectRequest
    release: ReleaseRequest
    heartbeat: Heartbeat
    def __init__(self, id: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., produce: _Optional[_Union[ProduceRequest, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., unsubscribe: _Optional[_Union[Unsubscribe, _Mapping]] = ..., ack: _Optional[_Union[AckRequest, _Mapping]] = ..., nack: _Optional[_Union[NackRequest, _Mapping]] = ..., extend: _Optional[_Union[ExtendRequest, _Mapping]] = ..., reject: _Optional[_Union[RejectRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "error", "welcome", "produced", "done", "push")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: Error
    welcome: Welcome
    produced: ProduceResponse
    done: Done
    push: Push
    def __init__(self, id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., produced: _Optional[_Union[ProduceResponse, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("client", "group", "consumer")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    client: str
    group: str
    consumer: str
    def __init__(self, client: _Optional[str] = ..., group: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node", "cluster_id", "version", "max_requests", "max_credit", "max_request_bytes", "idle_timeout_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_CREDIT_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    node: int
    cluster_id: str
    version: str
    max_requests: int
    max_credit: int
    max_request_bytes: int
    idle_timeout_ms: int
    def __init__(self, node: _Optional[int] = ..., cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., max_requests: _Optional[int] = ..., max_credit: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("topic", "credit", "visibility_ms", "format", "auto_ack", "start", "max_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    credit: int
    visibility_ms: int
    format: Format
    auto_ack: bool
    start: Start
    max_bytes: int
    def __init__(self, topic: _Optional[str] = ..., credit: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., format: _Optional[_Union[Format, str]] = ..., auto_ack: bool = ..., start: _Optional[_Union[Start, str]] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("subscription", "messages")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    messages: int
    def __init__(self, subscription: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class Unsubscribe(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: int
    def __init__(self, subscription: _Optional[int] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
