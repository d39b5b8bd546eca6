"""The answers of the HTTP API, in the words of the Python client."""

from dataclasses import asdict
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from quivermq.client import (
    AsyncLeasedMessage,
    BatchReceipt,
    DeadLetter,
    DelayedInfo,
    InFlightInfo,
    Message,
)
from quivermq.moments import format_moment, format_written
from quivermq.transports.http.encoding import Encoding, to_text

U64 = Annotated[int, PlainSerializer(str, return_type=str)]
"""A string in JSON: JavaScript cannot hold 64 bits in a number."""


class ApiAnswer(BaseModel):
    """The base of every answer."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class ErrorDetails(ApiAnswer):
    """A refusal: its code, and what was wrong."""

    code: str = Field(description="The name of the error, as in `quivermq.errors`.")
    message: str = Field(description="What was wrong and what to do, for people.")
    retriable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="As in `X-Request-Id`, and in the broker's log.")


class ErrorAnswer(ApiAnswer):
    """The body of every answer with a status from 400 up."""

    error: ErrorDetails


class HealthAnswer(ApiAnswer):
    """The process runs and its event loop turns."""

    status: Literal["ok"] = "ok"
    node: int = Field(description="The node id of this broker; 0: a gateway.")
    cluster_id: str = Field(description="Empty until the broker belongs to a cluster.")
    version: str = Field(description="The release that runs.")


class ReadyAnswer(ApiAnswer):
    """The broker is a member of its cluster and knows a leader of everything."""

    status: Literal["ready"] = "ready"
    node: int = Field(description="The node id of this broker; 0: a gateway.")
    leader: int = Field(description="The node that leads the metadata partition.")


class NodeAnswer(ApiAnswer):
    """One broker."""

    id: int = Field(description="Its node id.")
    address: str = Field(description="Where clients connect.")
    peer_address: str = Field(description="Where other brokers connect.")
    http_address: str = Field(description="Where its HTTP API is; empty: off.")
    alive: bool = Field(description="Whether the broker that answers has heard it lately.")
    leaders: int = Field(description="Partitions that it leads.")
    replicas: int = Field(description="Partitions that it holds.")
    state: str = Field(description='"serving", "leaving", or "refused" with the reason.')
    version: str = Field(description="The release that it runs.")
    zone: str = Field(description="Where it runs, as its operator named it; empty: no zone.")
    machine: str = Field(description="The host that other brokers reach it at.")


class ClusterAnswer(ApiAnswer):
    """The brokers, and who leads them."""

    cluster_id: str = Field(description="Drawn when the cluster was founded.")
    version: U64 = Field(description="Of the catalog; grows with every change.")
    leader: int = Field(
        description="The node that leads the metadata partition; 0: none just then."
    )
    node: int = Field(description="The broker that answers.")
    nodes: list[NodeAnswer] = Field(description="All brokers, by node id.")


class PartitionAnswer(ApiAnswer):
    """One partition, as its leader sees it; null: only its leader knows, and did not answer."""

    partition: int = Field(description="Its number, from 0.")
    leader: int = Field(description="The node that leads it; 0: none just then.")
    replicas: list[int] = Field(description="The nodes that hold it.")
    in_sync: list[int] | None = Field(description="Those that have everything that is committed.")
    target: list[int] = Field(description="Where it is being moved to; empty: it is not.")
    start_offset: U64 | None = Field(description="The first message that is kept.")
    end_offset: U64 | None = Field(description="Behind the last message.")
    size_bytes: U64 | None = Field(description="What the leader's log takes on disk.")
    term: U64 | None = Field(description="Counts its leaders.")
    commit_index: U64 | None = Field(description="The last entry that is committed.")
    trouble: str = Field(description="What is wrong, for people; empty: nothing.")


class RetentionAnswer(ApiAnswer):
    """How long messages are kept; null: no limit."""

    max_age: float | None = Field(description="Seconds.")
    max_messages: U64 | None = Field(description="In each partition.")
    max_bytes: U64 | None = Field(description="Of each partition's log.")
    delete_acked: bool = Field(description="Drop also what every group has done.")
    keep_until_archived: bool = Field(description="Drop only what the archive holds.")


class RateLimitAnswer(ApiAnswer):
    """How fast messages are delivered at most."""

    per_second: float = Field(description="Over all partitions and groups of the topic.")
    burst: int = Field(description="So many may come at once after a pause.")


class RetryAnswer(ApiAnswer):
    """How long a message that failed waits before it is delivered again, in seconds."""

    first: float = Field(description="After the first failure.")
    base: float = Field(description="After the second; it doubles with each further one.")
    longest: float = Field(description="The longest.")


class TopicAnswer(ApiAnswer):
    """A topic: its settings and its partitions."""

    name: str
    id: str = Field(description="Another one after the topic was deleted and created again.")
    replication: int = Field(description="Replicas of each partition.")
    retention: RetentionAnswer
    rate_limit: RateLimitAnswer | None = Field(description="null: no limit.")
    max_deliveries: int = Field(description="Past it a message goes to the dead-letter topic.")
    dead_letter: str = Field(description="The dead-letter topic.")
    retry: RetryAnswer
    group_idle_retention: float | None = Field(
        description="Seconds without use after which a shared group is deleted; null: never."
    )
    drop_expired: bool = Field(description="Messages whose ttl is over become no dead letters.")
    partitions: list[PartitionAnswer] = Field(description="All of them, by number.")


class TopicsAnswer(ApiAnswer):
    """All topics."""

    topics: list[TopicAnswer] = Field(description="By name.")


class DoneAnswer(ApiAnswer):
    """It is done, and durable."""

    status: Literal["done"] = "done"


class ReceiptAnswer(ApiAnswer):
    """Where a message is stored."""

    partition: int
    offset: U64


class ProducedAnswer(ApiAnswer):
    """Messages are stored, and durable."""

    receipts: list[ReceiptAnswer] = Field(description="One for each message, in their order.")


class BatchAnswer(ApiAnswer):
    """Where messages in a row are stored."""

    partition: int
    first_offset: U64
    count: int

    @classmethod
    def of(cls, receipt: BatchReceipt) -> Self:
        return cls(
            partition=receipt.partition, first_offset=receipt.first_offset, count=receipt.count
        )


class BatchesAnswer(ApiAnswer):
    """Messages of an Arrow stream are stored, and durable."""

    batches: list[BatchAnswer]


class MessageAnswer(ApiAnswer):
    """A message of a partition."""

    partition: int
    offset: U64
    timestamp: U64 = Field(description="Milliseconds since 1970.")
    priority: int
    encoding: Encoding = Field(description="Of key, value and the values of headers.")
    key: str | None
    value: str
    headers: dict[str, str]
    content_type: str | None = Field(description="As its producer named it.")

    @classmethod
    def of(cls, message: Message, encoding: Encoding) -> Self:
        used, key, value, headers = to_text(encoding, message.key, message.value, message.headers)
        return cls.model_construct(
            partition=message.partition,
            offset=message.offset,
            timestamp=message.timestamp,
            priority=message.priority,
            encoding=used,
            key=key,
            value=value,
            headers=headers,
            content_type=message.content_type,
        )


class MessagesAnswer(ApiAnswer):
    """Messages of a partition, in order."""

    messages: list[MessageAnswer]
    next_offset: U64 = Field(description="Where to read on.")
    start_offset: U64 = Field(description="The first message that is kept.")
    end_offset: U64 = Field(description="Behind the last message.")


class LeasedMessageAnswer(MessageAnswer):
    """A message that is leased to who polled it."""

    delivery_count: int = Field(description="From 1: failures so far, and this delivery.")
    last_reason: str | None = Field(description="Why it failed before, if its consumer said so.")
    lease: str = Field(description="What acknowledges it; empty: it is acknowledged.")

    @classmethod
    def of_leased(cls, message: AsyncLeasedMessage, lease: str, encoding: Encoding) -> Self:
        used, key, value, headers = to_text(encoding, message.key, message.value, message.headers)
        return cls.model_construct(
            partition=message.partition,
            offset=message.offset,
            timestamp=message.timestamp,
            priority=message.priority,
            encoding=used,
            key=key,
            value=value,
            headers=headers,
            content_type=message.content_type,
            delivery_count=message.delivery_count,
            last_reason=message.last_reason,
            lease=lease,
        )


class LeaseAnswer(ApiAnswer):
    """The lease and offsets to send to ack, nack, extend, reject or release."""

    partition: int
    lease: str
    offsets: list[U64]


class PollAnswer(ApiAnswer):
    """Messages, the most urgent first, and their leases."""

    messages: list[LeasedMessageAnswer]
    leases: list[LeaseAnswer] = Field(
        description="One for each partition; empty with ack=auto. This is what ack takes."
    )


class PlaceAnswer(ApiAnswer):
    """An offset of a partition."""

    partition: int
    offset: U64


class PlacesAnswer(ApiAnswer):
    """Where a group goes on."""

    offsets: list[PlaceAnswer]


class GroupPartitionAnswer(ApiAnswer):
    """A group in one partition; every message from `start_offset` on is counted once."""

    partition: int
    lag: U64 = Field(description="Messages that wait to be delivered.")
    in_flight: U64 = Field(description="Leased to consumers.")
    delayed: U64 = Field(description="Not due yet.")
    done: U64 = Field(description="Acknowledged.")
    dead: U64 = Field(description="Dead letters.")
    lost: U64 = Field(description="Deleted by retention before they were done.")
    redelivered: U64 = Field(description="Deliveries that were not the first.")
    floor: U64 = Field(description="Everything below is done.")
    committed: U64 | None = Field(description="Of sticky and single consumers.")
    start_offset: U64
    end_offset: U64


class MemberAnswer(ApiAnswer):
    """A consumer of a group."""

    id: str
    name: str = Field(description="For people.")
    in_flight: U64 = Field(description="Messages that are leased to it.")
    partitions: list[int] = Field(description="Of a sticky group: what is assigned to it.")


class GroupAnswer(ApiAnswer):
    """A group of a topic, summed over its partitions."""

    name: str
    topic: str
    mode: str = Field(description='"shared", "sticky", "single" or "archive".')
    lag: U64 = Field(description="Messages that wait to be delivered.")
    in_flight: U64
    done: U64
    delayed: U64
    dead: U64
    lost: U64
    redelivered: U64
    generation: U64 = Field(description="Of a sticky group: grows with every change.")
    members: list[MemberAnswer]
    partitions: list[GroupPartitionAnswer]


class GroupsAnswer(ApiAnswer):
    """All groups of a topic, by name."""

    groups: list[GroupAnswer]


class InFlightAnswer(ApiAnswer):
    """Messages in a row that are leased to one consumer, delivered equally often."""

    partition: int
    offset: U64 = Field(description="Of the first.")
    count: U64
    member: str = Field(description="The id of the consumer that has them.")
    program: str = Field(description="Its name, for people.")
    deliveries: int = Field(description="With this one.")
    held: float = Field(description="Seconds since they were leased, extensions included.")
    left: float = Field(description="Seconds until the lease ends, unless it is extended.")

    @classmethod
    def of(cls, found: InFlightInfo) -> Self:
        return cls(**asdict(found))


class InFlightListAnswer(ApiAnswer):
    """The messages that are leased to consumers of a group, the longest held first."""

    in_flight: list[InFlightAnswer]


class LetterAnswer(ApiAnswer):
    """A message that failed too often or was rejected."""

    partition: int = Field(description="Of the dead-letter topic.")
    offset: U64 = Field(description="In the dead-letter topic.")
    topic: str = Field(description="Where it came from.")
    group: str = Field(description="The group that could not do it.")
    reason: str
    deliveries: int | None
    original_partition: int | None
    original_offset: U64 | None
    died: str = Field(description="ISO 8601, in UTC.")
    timestamp: U64 = Field(description="Milliseconds since 1970.")
    encoding: Encoding
    key: str | None
    value: str
    headers: dict[str, str]
    content_type: str | None = Field(description="As its producer named it.")

    @classmethod
    def of(cls, letter: DeadLetter, encoding: Encoding) -> Self:
        used, key, value, headers = to_text(encoding, letter.key, letter.value, letter.headers)
        given = letter._asdict() | {"key": key, "value": value, "headers": headers}
        given["died"] = format_written(letter.died)
        return cls.model_construct(encoding=used, content_type=letter.content_type, **given)


class LettersAnswer(ApiAnswer):
    """Dead letters, by partition and offset."""

    letters: list[LetterAnswer]
    is_complete: bool = Field(description="False: there are more behind the last one.")


class CountAnswer(ApiAnswer):
    """How many messages it was done to."""

    messages: U64


class RedrivenAnswer(CountAnswer):
    """How many dead letters went back."""

    stayed: U64 = Field(
        description="Those that could not go to their group: the original, the group or the topic "
        'is gone. They are still dead letters; "to": "all" stores them again.'
    )


class DelayedAnswer(ApiAnswer):
    """Messages in a row that their producer delayed."""

    partition: int
    offset: U64 = Field(description="Of the first.")
    count: int
    due: str = Field(description="ISO 8601, in UTC.")
    priority: int

    @classmethod
    def of(cls, found: DelayedInfo) -> Self:
        return cls(
            partition=found.partition,
            offset=found.offset,
            count=found.count,
            due=format_moment(found.due),
            priority=found.priority,
        )


class DelayedListAnswer(ApiAnswer):
    """Messages that are not due yet, the next first."""

    delayed: list[DelayedAnswer]
