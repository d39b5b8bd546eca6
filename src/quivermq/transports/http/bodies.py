"""The bodies and parameters of requests: what may be said, and within which limits."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Path, Query
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from quivermq.batches import TIMESTAMP_MS_MAX
from quivermq.client import letter_filter
from quivermq.errors import InvalidRequest
from quivermq.names import NAME_CHARACTERS_MAX
from quivermq.transports.http.encoding import Encoding
from quivermq.wire import LetterFilter

_TAIL: Final = r"[A-Za-z0-9._-]*$"
_NAME: Final = r"^([A-Za-z0-9_-]|\.[A-Za-z0-9_-]|\.\.[A-Za-z0-9._-])" + _TAIL
_OWN_NAME: Final = r"^([A-Za-z0-9-]|\.[A-Za-z0-9_-]|\.\.[A-Za-z0-9._-])" + _TAIL
"""Names that begin with _ are the brokers' own."""

U63_MAX: Final = (1 << 63) - 1
U32_MAX: Final = (1 << 32) - 1
_EXACT_MAX: Final = (1 << 53) - 1
MESSAGES_MAX: Final = 10_000
"""Messages in one body."""
OFFSETS_MAX: Final = 1_000
"""Offsets in one list."""
LISTED_MAX: Final = 1_000
"""Messages in one answer."""
WAIT_S_MAX: Final = 60.0
VISIBILITY_S_MAX: Final = 12 * 3600.0
PARTITION_MAX: Final = 1_000_000
DELAY_S_MAX: Final = 366 * 24 * 3600.0


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(value: Any) -> Any:
    """Digits as text are a number; Python refuses to read thousands of them."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        return int(value)
    value = _whole(value)
    if isinstance(value, int) and value > _EXACT_MAX:
        raise ValueError("send numbers above 2**53 as text: as numbers they may be rounded")
    return value


def _schema(least: int, pattern: str) -> WithJsonSchema:
    number = {"type": "integer", "minimum": least, "maximum": _EXACT_MAX}
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": pattern}, number]})


U63 = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=0, le=U63_MAX),
    _schema(0, "^(0|[1-9][0-9]{0,17})$"),
]
"""A 64-bit number: answers have it as text, requests may have it as a number too."""

Offsets = Annotated[
    list[
        Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,17})$")]
        | Annotated[int, Field(ge=0, le=_EXACT_MAX)]
    ],
    Field(min_length=1, max_length=OFFSETS_MAX, fail_fast=True),
]
"""Checked without Python for each of them: there may be many. `numbers_of` makes numbers."""


def numbers_of(offsets: Sequence[str | int]) -> list[int]:
    """Offsets as they travel inside."""
    return list(map(int, offsets))


PositiveU63 = Annotated[
    int, BeforeValidator(_number), Field(ge=1, le=U63_MAX), _schema(1, "^[1-9][0-9]{0,17}$")
]

TopicName = Annotated[
    str,
    Path(
        description="The name of the topic.",
        pattern=_NAME,
        max_length=NAME_CHARACTERS_MAX,
        examples=["orders"],
    ),
]
GroupName = Annotated[
    str,
    Path(
        description="The name of the group.",
        pattern=_OWN_NAME,
        max_length=NAME_CHARACTERS_MAX,
        examples=["billing"],
    ),
]
AnyGroupName = Annotated[
    str,
    Path(
        description="The name of the group; that of an archive begins with _archive.",
        pattern=_NAME,
        max_length=NAME_CHARACTERS_MAX,
        examples=["billing"],
    ),
]
PartitionNumber = Annotated[int, Path(description="Its number, from 0.", ge=0, le=PARTITION_MAX)]
OffsetNumber = Annotated[int, Path(description="The offset.", ge=0, le=U63_MAX)]
EncodingQuery = Annotated[
    Encoding,
    Query(description="How bytes are shown; what is not UTF-8 is base64 in any case."),
]
LimitQuery = Annotated[int, Query(description="So many at most.", ge=1, le=LISTED_MAX)]

Seconds = Annotated[float, Field(ge=0, le=DELAY_S_MAX, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=WAIT_S_MAX, allow_inf_nan=False)]
Visibility = Annotated[float, Field(ge=0.001, le=VISIBILITY_S_MAX, allow_inf_nan=False)]
Partition = Annotated[int, Field(ge=0, le=PARTITION_MAX)]
ContentType = Annotated[str, Field(min_length=1, max_length=200)]
TimestampMs = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=0, le=TIMESTAMP_MS_MAX),
    _schema(0, "^(0|[1-9][0-9]{0,14})$"),
]


class Body(BaseModel):
    """The base of every body: no field that is not known, no type that is nearly right."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, given: Any) -> Any:
        """In JSON, 5.0 is a whole number."""
        if not isinstance(given, dict):
            return given
        return {name: _whole(value) for name, value in given.items()}


class RetentionBody(Body):
    """How long messages are kept; null: no limit."""

    max_age: Annotated[float, Field(gt=0.001, le=1e12)] | None = Field(None, description="Seconds.")
    max_messages: PositiveU63 | None = Field(None, description="In each partition.")
    max_bytes: PositiveU63 | None = Field(None, description="Of each partition's log.")
    delete_acked: bool = Field(False, description="Drop also what every group has done.")
    keep_until_archived: bool = Field(False, description="Drop only what the archive holds.")


class RateLimitBody(Body):
    """How fast messages are delivered at most."""

    per_second: Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)] = Field(
        description="Over all partitions and groups of the topic."
    )
    burst: int = Field(1, ge=1, le=U32_MAX, description="So many may come at once after a pause.")


class RetryBody(Body):
    """How long a message that failed waits before it is delivered again, in seconds."""

    first: Annotated[float, Field(ge=0, le=4e6, allow_inf_nan=False)] = Field(
        0.0, description="After the first failure."
    )
    base: Annotated[float, Field(ge=0.001, le=4e6, allow_inf_nan=False)] = Field(
        1.0, description="After the second; it doubles with each further one."
    )
    longest: Annotated[float, Field(ge=0.001, le=4e6, allow_inf_nan=False)] = Field(
        60.0, description="The longest."
    )


_DEAD_LETTER: Final = "The topic for messages that failed too often; by default TOPIC.dlq."
DeadLetterName = Annotated[str, Field(pattern=_OWN_NAME, max_length=NAME_CHARACTERS_MAX)]


class TopicBody(Body):
    """The settings of a topic that may be changed; what is left out stays as it is."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="How many; they can only become more. Default: as brokers are set."
    )
    retention: RetentionBody | None = Field(None, description="null: everything is kept.")
    rate_limit: RateLimitBody | None = Field(None, description="null: no limit.")
    max_deliveries: int = Field(
        5, ge=1, le=U32_MAX, description="Past it a message goes to the dead-letter topic."
    )
    dead_letter: DeadLetterName | None = Field(None, description=_DEAD_LETTER)
    retry: RetryBody | None = Field(None, description="null: as by default.")
    drop_expired: bool = Field(
        False, description="Drop messages whose ttl is over: they become no dead letters."
    )


class NewTopicBody(TopicBody):
    """A topic that is to be created."""

    name: str = Field(
        description="Letters, digits, '.', '_' and '-'.",
        pattern=_OWN_NAME,
        max_length=NAME_CHARACTERS_MAX,
        examples=["orders"],
    )
    replication: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Replicas of each partition; default: as brokers are set."
    )


class MessageBody(Body):
    """A message that is to be stored."""

    value: str = Field(description="In the encoding of the request, or its own.")
    key: str | None = Field(
        None, description="Messages with the same key go to the same partition."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="Values in the same encoding.", max_length=1_000
    )
    priority: int = Field(0, ge=0, le=7, description="Groups get the highest first.")
    delay: Seconds = Field(0.0, description="Seconds before groups get it.")
    partition: Partition | None = Field(
        None, description="Where it goes; default: where its key says, or any."
    )
    encoding: Encoding | None = Field(None, description="null: that of the request.")
    content_type: ContentType | None = Field(
        None, description="What the value is, as application/json; the header content-type."
    )
    timestamp: TimestampMs | None = Field(
        None, description="Its own time, in milliseconds since 1970; default: the broker's."
    )
    ttl: Annotated[float, Field(ge=0.001, le=DELAY_S_MAX, allow_inf_nan=False)] | None = Field(
        None,
        description="Seconds; what no consumer of a group took by then is not delivered to it.",
    )


class ProduceBody(Body):
    """Messages that are to be stored."""

    messages: list[MessageBody] = Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True)
    encoding: Encoding = Field("utf8", description="Of values, keys and header values.")


class PollBody(Body):
    """How much is leased, and for how long."""

    max_messages: int = Field(100, ge=1, le=LISTED_MAX)
    wait: Wait = Field(1.0, description="Seconds to wait if there are no messages.")
    visibility: Visibility = Field(
        30.0, description="Seconds; what is not settled by then is delivered again."
    )
    ack: Literal["manual", "auto"] = Field(
        "manual", description="auto: acknowledged before they are delivered, at most once."
    )
    start: Literal["earliest", "latest"] = Field(
        "earliest", description="Where a group begins that does not exist yet."
    )
    encoding: Encoding = Field("utf8", description="How bytes are shown.")
    consumer: str = Field("", max_length=200, description="A name that is shown to people.")


class LeaseBody(Body):
    """Messages of one partition that one poll leased."""

    model_config = ConfigDict(extra="ignore")

    partition: Partition
    lease: str = Field(pattern=r"^[0-9a-f]{32}$", description="As the poll answered it.")
    offsets: Offsets | None = Field(
        None, description="Which messages; null: all that is left of the lease."
    )


class SettleBody(Body):
    """Messages that are settled. A poll's whole answer will do: what is not named is ignored."""

    model_config = ConfigDict(extra="ignore")

    leases: list[LeaseBody] = Field(min_length=1, max_length=LISTED_MAX, fail_fast=True)


class NackBody(SettleBody):
    """Messages that failed."""

    delay: Annotated[float, Field(ge=0, le=7 * 24 * 3600.0, allow_inf_nan=False)] | None = Field(
        None, description="Seconds before they come again; null: the topic's backoff."
    )
    reason: str = Field("", max_length=250, description="Kept with them, also as dead letters.")


class RejectBody(SettleBody):
    """Messages that can never succeed."""

    reason: str = Field("", max_length=250, description="Shown with the dead letter.")


class ExtendBody(SettleBody):
    """Leases that are to last longer, each as a whole."""

    seconds: Visibility = Field(description="From now on.")


class CommitBody(Body):
    """How far a group is in a partition."""

    partition: Partition
    offset: U63 = Field(description="Of the next message that it wants.")


class SeekBody(Body):
    """Where a group goes on."""

    to: str = Field(
        "earliest",
        pattern=r"^(earliest|latest|@?[0-9]{1,18}|[0-9]{4}-.{1,40})$",
        description='"earliest", "latest", an offset, an ISO 8601 time, or "@" and milliseconds '
        "since 1970. An offset needs a partition, unless the topic has only one.",
    )
    partition: Partition | None = Field(None, description="null: all.")


_OF_GROUP: Final = "Only those of the group that failed."
_REASON: Final = "Only those with this in their reason."
_KEY: Final = "Only those with this key, in UTF-8."
_OLDER: Final = "Only those that died so many seconds ago, or longer."
_SINCE: Final = "Only those that died at this time (ISO 8601) or later."
_Moment = Annotated[str, Field(pattern=r"^[0-9]{4}-.{1,40}$")]


class LettersBody(Body):
    """Dead letters by their offsets in the dead-letter topic; without offsets, all; and of these
    the ones of which everything else is true."""

    partition: Partition | None = Field(None, description="Of the dead-letter topic; null: all.")
    offsets: Offsets | None = None
    group: str | None = Field(None, max_length=NAME_CHARACTERS_MAX, description=_OF_GROUP)
    reason: str | None = Field(None, max_length=1_000, description=_REASON)
    key: str | None = Field(None, max_length=10_000, description=_KEY)
    older_than: Seconds | None = Field(None, description=_OLDER)
    since: _Moment | None = Field(None, description=_SINCE)

    @property
    def wanted(self) -> LetterFilter:
        """As brokers take it."""
        since = None if self.since is None else moment_of(self.since)
        return letter_filter(self.group, self.reason, self.key, self.older_than, since)


class RedriveBody(LettersBody):
    """Dead letters, and where they go."""

    to: str = Field(
        "group",
        pattern=_OWN_NAME,
        max_length=NAME_CHARACTERS_MAX,
        description='"group": the group that failed gets them again, and no other; "all": they '
        "are stored in their topic again, for every group; else the topic to store them in.",
    )
    rate: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="So many a second at most; the answer comes when all are on their way."
    )


def moment_of(text: str) -> datetime:
    """A time of a request; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is not a time: write it as 2026-11-16T12:00:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


async def letters_wanted(
    group: Annotated[
        str | None, Query(max_length=NAME_CHARACTERS_MAX, description=_OF_GROUP)
    ] = None,
    reason: Annotated[str | None, Query(max_length=1_000, description=_REASON)] = None,
    key: Annotated[str | None, Query(max_length=10_000, description=_KEY)] = None,
    older_than: Annotated[
        float | None, Query(ge=0, le=DELAY_S_MAX, allow_inf_nan=False, description=_OLDER)
    ] = None,
    since: Annotated[str | None, Query(pattern=r"^[0-9]{4}-.{1,40}$", description=_SINCE)] = None,
) -> LetterFilter:
    """The filter of a list of dead letters, by its query parameters."""
    moment = None if since is None else moment_of(since)
    return letter_filter(group, reason, key, older_than, moment)


LettersQuery = Annotated[LetterFilter, Depends(letters_wanted)]


class DelayedBody(Body):
    """Delayed messages of one partition."""

    partition: Partition
    offsets: Offsets
