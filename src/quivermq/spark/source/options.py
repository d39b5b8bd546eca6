"""Parses the options of `read` and `readStream`, named as in Spark's Kafka source, before a broker
is asked."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Self

from quivermq.client import parse_place
from quivermq.errors import InvalidRequest
from quivermq.quantities import parse_duration

EARLIEST: Final = -2
LATEST: Final = -1
"""The numbers of Spark's Kafka source."""

CONNECTION: Final = ("servers", "token", "tls", "timeout", "zone")
_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
_PLACES: Final = (
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
)  # fmt: skip
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group")
_OTHERS: Final = (
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "followerReads",
    "columns", "filterPushdown", "archive",
)  # fmt: skip
NAMES: Final = (*CONNECTION, *_CHOICES, *_PLACES, *_STREAM_ONLY, *_OTHERS)

_DELAY_DEFAULT: Final = "15m"

Numbers = Mapping[str, Mapping[int, int]]
"""By topic and partition."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read begins or ends."""

    default: int
    """`EARLIEST` or `LATEST`, for partitions that are not named."""
    offsets: Numbers = field(default_factory=dict)
    """Offsets, or `EARLIEST` or `LATEST`."""
    times: Numbers = field(default_factory=dict)
    """Milliseconds since 1970."""
    time: int | None = None
    """The same for all partitions that are not in `times`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one query."""

    connection: Mapping[str, str]
    """For `client_of`."""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    starting: Bound = Bound(EARLIEST)
    ending: Bound = Bound(LATEST)
    rows_max: int | None = None
    """Of a micro-batch."""
    rows_min: int | None = None
    """Below this a micro-batch waits for more, for up to `delay_max` seconds."""
    delay_max: float = 900.0
    partitions_min: int | None = None
    task_rows_max: int | None = None
    fail_on_loss: bool = True
    follower_ok: bool = True
    group: str = ""
    archive: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool) -> Self:
        """Parse the options. Raises `InvalidRequest` for those that are wrong or contradictory."""
        _check_names(given)
        _check_fit(given, is_stream=is_stream)
        topics, pattern, assigned = _choice(given)
        delay = given.get("maxTriggerDelay") or _DELAY_DEFAULT
        return cls(
            connection={name: given[name] for name in CONNECTION if given.get(name)},
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=_bound(given, "starting", LATEST if is_stream else EARLIEST),
            ending=_bound(given, "ending", LATEST),
            rows_max=_count(given, "maxOffsetsPerTrigger"),
            rows_min=_count(given, "minOffsetsPerTrigger"),
            delay_max=_seconds("maxTriggerDelay", delay),
            partitions_min=_count(given, "minPartitions"),
            task_rows_max=_count(given, "maxRecordsPerPartition"),
            fail_on_loss=flag(given, "failOnDataLoss", default=True),
            follower_ok=flag(given, "followerReads", default=True),
            group=_group(given.get("group") or ""),
            archive=given.get("archive") or "",
        )

    def takes(self, topic: str, partition: int) -> bool:
        """False if partitions were assigned, and this is none of them."""
        return not self.assigned or partition in self.assigned.get(topic, ())


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An option that is true or false."""
    text = (given.get(name) or str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise InvalidRequest(f"option {name} must be true or false: {given[name]!r}")
    return text == "true"


def _check_names(given: Mapping[str, str]) -> None:
    """Refuse misspelt options. Spark passes keys of its own, which are ignored."""
    known = {name.lower(): name for name in NAMES}
    for key in given:
        if key.lower() in known:
            continue
        if key.lower() == "topic":
            raise InvalidRequest("option topic is for writing: to read, name topics in subscribe")
        if key.lower() == "kafka.bootstrap.servers":
            raise InvalidRequest("option kafka.bootstrap.servers is called servers here")
        near = get_close_matches(key.lower(), known, cutoff=0.8)
        if near or key.lower().startswith("kafka."):
            meant = f"did you mean {known[near[0]]}? " if near else ""
            raise InvalidRequest(
                f"there is no option {key}: {meant}There are {', '.join(sorted(NAMES))}"
            )


def _check_fit(given: Mapping[str, str], *, is_stream: bool) -> None:
    endings = [name for name in _PLACES if name.startswith("ending")]
    for name in endings if is_stream else _STREAM_ONLY:
        if given.get(name):
            why = "a stream has no end" if is_stream else "it is for readStream"
            raise InvalidRequest(f"option {name} has no meaning here: {why}")
    if not is_stream and (given.get("startingOffsets") or "").strip().lower() == "latest":
        raise InvalidRequest("option startingOffsets must not be latest in a batch: that is empty")


def _choice(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], str, dict[str, tuple[int, ...]]]:
    chosen = [name for name in _CHOICES if (given.get(name) or "").strip()]
    if len(chosen) != 1:
        said = " and ".join(chosen) or "none of them"
        raise InvalidRequest(
            f"name the topics by exactly one of the options {', '.join(_CHOICES)}: {said} given"
        )
    text = given[chosen[0]].strip()
    if chosen[0] == "subscribe":
        names = [name.strip() for name in text.split(",")]
        return tuple(sorted({name for name in names if name})), "", {}
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidRequest(
                f"option subscribePattern is not a regular expression: {text!r}: {error}"
            ) from None
        return (), text, {}
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _json("assign", text).items():
        if not isinstance(partitions, list) or not all(_is_number(each) for each in partitions):
            raise InvalidRequest(f'option assign looks like {{"orders": [0, 1]}}: {text!r}')
        assigned[topic] = tuple(sorted(set(partitions)))
    return tuple(sorted(assigned)), "", assigned


def _bound(given: Mapping[str, str], side: str, default: int) -> Bound:
    """Parse a bound; times override offsets, as in Spark's Kafka source."""
    moment = given.get(f"{side}Timestamp")
    if moment:
        return Bound(default, time=_moment(f"{side}Timestamp", moment))
    moments = given.get(f"{side}OffsetsByTimestamp")
    if moments:
        name = f"{side}OffsetsByTimestamp"
        return Bound(default, times=_numbers(name, moments, least=0))
    text = (given.get(f"{side}Offsets") or "").strip()
    if not text:
        return Bound(default)
    if text.lower() in {"earliest", "latest"}:
        if side == "ending" and text.lower() == "earliest":
            raise InvalidRequest("option endingOffsets must not be earliest: that is empty")
        return Bound(EARLIEST if text.lower() == "earliest" else LATEST)
    offsets = _numbers(f"{side}Offsets", text, least=EARLIEST)
    return Bound(EARLIEST if side == "starting" else LATEST, offsets=offsets)


def _moment(name: str, text: str) -> int:
    place = parse_place(f"option {name}", f"@{text}" if text.strip().isdecimal() else text.strip())
    if not isinstance(place, str) or not place.startswith("@"):
        raise InvalidRequest(f"option {name} must be milliseconds since 1970 or ISO 8601: {text!r}")
    return int(place[1:])


def _numbers(name: str, text: str, *, least: int) -> Numbers:
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(name, text).items():
        if not isinstance(partitions, dict) or not all(
            _whole(partition) is not None and _is_number(number, least)
            for partition, number in partitions.items()
        ):
            raise InvalidRequest(f'option {name} looks like {{"orders": {{"0": 42}}}}: {text!r}')
        found[topic] = {int(partition): number for partition, number in partitions.items()}
    return found


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"option {name} must be JSON, by topic: {text!r}")
    return found


def _is_number(value: object, least: int = 0) -> bool:
    # True is an int too.
    return type(value) is int and least <= value < 1 << 63


def _whole(text: str) -> int | None:
    """The number that a text is, below 2**63; None for any other text."""
    number = int(text) if text.isdecimal() and len(text) < 20 else None
    return number if _is_number(number) else None


def _group(name: str) -> str:
    if name.startswith("_"):
        raise InvalidRequest(f"option group: names that begin with _ are the system's: {name!r}")
    return name


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = (given.get(name) or "").strip()
    if not text:
        return None
    number = _whole(text)
    if not number:
        raise InvalidRequest(f"option {name} must be a whole number from 1 up: {text!r}")
    return number


def _seconds(name: str, text: str) -> float:
    """A number alone means milliseconds, as in Spark."""
    try:
        return parse_duration(text, bare="ms")
    except ValueError:
        raise InvalidRequest(f"option {name} must be a time such as 30s or 15m: {text!r}") from None
