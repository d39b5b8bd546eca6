"""A topic's settings on the command line: the options, what they make, and how they read."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import duration, size
from quivermq.cli.output import count
from quivermq.cli.quantities import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quivermq.client import GroupInfo, RateLimit, Retention, Retry, TopicInfo

_LIFTED: Final = {"none", "unlimited"}
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smh]))?", re.ASCII)
_RATE_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}


def _age(text: str) -> float:
    return 0.0 if text.lower() in _LIFTED else duration(text)


def _bytes(text: str) -> float:
    return 0 if text.lower() in _LIFTED else size(text)


def _messages(text: str) -> int:
    if text.lower() in _LIFTED:
        return 0
    if not text.replace("_", "").isdecimal():
        raise typer.BadParameter(f"{text!r} is no number of messages: write 1000000, or none")
    return int(text)


def _rate(text: str) -> float:
    """Messages a second; 0: no limit."""
    if text.lower() in _LIFTED:
        return 0.0
    found = _RATE.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is no rate: write 0.5, 100/s, 30/m, 5/h, or none")
    return float(found[1]) / _RATE_SECONDS[found[2] or "s"]


_DELIVERY: Final = "Delivery to groups"

MaxAge = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION",
        parser=_age,
        help="Drop messages older than this: 12h, 7d; none: keep them.",
    ),
]
MaxBytes = Annotated[
    float | None,
    typer.Option(
        metavar="SIZE",
        parser=_bytes,
        help="Drop the oldest messages of a partition past this: 500MB, 10GB; none: keep them.",
    ),
]
MaxMessages = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=_messages,
        help="Drop the oldest messages of a partition past so many; none: keep them.",
    ),
]
Archived = Annotated[
    bool | None,
    typer.Option(
        "--keep-until-archived/--no-keep-until-archived",
        show_default=False,
        help="Drop only what `quiver pipeline archive` has put into its tables.",
    ),
]
DeleteAcked = Annotated[
    bool | None,
    typer.Option(
        "--delete-acked/--no-delete-acked",
        show_default=False,
        help="Drop also what every group has done; with no group, nothing is dropped for it.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate-limit",
        metavar="RATE",
        parser=_rate,
        help="Deliver at most so many, over all groups: 0.5, 100/s, 30/m; none: no limit.",
        rich_help_panel=_DELIVERY,
    ),
]
Burst = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="So many may come at once after a pause.",
        rich_help_panel=_DELIVERY,
    ),
]
MaxDeliveries = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="A message that failed so often becomes a dead letter.",
        rich_help_panel=_DELIVERY,
    ),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="Where dead letters go; default: TOPIC.dlq.",
        rich_help_panel=_DELIVERY,
    ),
]
RetryFirst = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION",
        parser=duration,
        help="Wait so long after a message's first failure.",
        rich_help_panel=_DELIVERY,
    ),
]
RetryBase = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION",
        parser=duration,
        help="Wait so long after the second; it doubles with each further one.",
        rich_help_panel=_DELIVERY,
    ),
]
RetryLongest = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION",
        parser=duration,
        help="Never wait longer than this.",
        rich_help_panel=_DELIVERY,
    ),
]

GroupIdle = Annotated[
    float | None,
    typer.Option(
        "--group-idle-retention",
        metavar="DURATION",
        parser=_age,
        help="Forget a shared group that nobody used for so long: 12h, 7d; none: never.",
        rich_help_panel=_DELIVERY,
    ),
]


def changed_retention(
    before: "Retention | None",
    max_age: float | None,
    max_bytes: float | None,
    max_messages: int | None,
    archived: bool | None = None,  # noqa: FBT001
    delete_acked: bool | None = None,  # noqa: FBT001
) -> "Retention":
    """`before` with what was named on the command line; 0 lifts a limit."""
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    limits = {"max_age": max_age, "max_bytes": max_bytes, "max_messages": max_messages}
    named: dict[str, Any] = {
        limit: value or None for limit, value in limits.items() if value is not None
    }
    if archived is not None:
        named["keep_until_archived"] = archived
    if delete_acked is not None:
        named["delete_acked"] = delete_acked
    return replace(before or quivermq.Retention(), **named)


def changed_rate_limit(
    before: "RateLimit | None", rate: float | None, burst: int | None
) -> "RateLimit | None":
    """The same for the limit of deliveries; None: there is none."""
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    per_second = rate if rate is not None else (before.per_second if before else 0.0)
    if not per_second:
        if burst is not None:
            raise UsageError("--burst belongs to a rate limit: name it by --rate-limit")
        return None
    return quivermq.RateLimit(per_second, burst or (before.burst if before else 1))


def changed_retry(
    before: "Retry | None", first: float | None, base: float | None, longest: float | None
) -> "Retry":
    """The same for the waits between deliveries of a message that failed."""
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    waits = {"first": first, "base": base, "longest": longest}
    named: dict[str, Any] = {wait: value for wait, value in waits.items() if value is not None}
    return replace(before or quivermq.Retry(), **named)


def changed_group_idle(idle: float | None) -> dict[str, Any]:
    """What to pass on of this setting: nothing if it was not named; 0 stands for "never"."""
    return {} if idle is None else {"group_idle_retention": idle or None}


def kept(retention: "Retention") -> str:
    """How long messages are kept, in a few words."""
    parts = []
    if retention.max_age:
        parts.append(format_duration(retention.max_age_ms / 1000))
    if retention.max_bytes:
        parts.append(format_size(retention.max_bytes))
    if retention.max_messages:
        parts.append(f"{retention.max_messages:,} messages")
    if retention.delete_acked:
        parts.append("or until every group has done them" if parts else "until every group is done")
    if parts and retention.keep_until_archived:
        parts.append("and until archived")
    return ", ".join(parts) or "for ever"


def holding_lines(retention: "Retention", groups: "Sequence[GroupInfo]") -> list[str]:
    """What keeps messages that would go otherwise, a sentence each."""
    archives = [group for group in groups if group.mode == "archive"]
    consumers = [group for group in groups if group.mode != "archive"]
    lines = []
    if retention.keep_until_archived:
        lines += [_holding(group) for group in archives]
        if not archives:
            lines.append("nothing is dropped: no table archives it")
    elif retention.delete_acked and consumers:
        # An archive counts as a group here.
        lines += [_holding(group) for group in archives]
    if retention.delete_acked:
        lines += [_holding(group) for group in consumers]
        if not consumers:
            lines.append("nothing is dropped as done: it has no group")
    return lines


def _holding(group: "GroupInfo") -> str:
    left = group.lag + group.in_flight + group.delayed
    return f"kept for {group.name} ({group.mode}): {count(left, 'message')} behind"


def delivery_lines(topic: "TopicInfo") -> list[str]:
    """How groups get messages, a sentence each."""
    retry = topic.retry
    after = "at once" if not retry.first else f"after {format_duration(retry.first)}"
    base, longest = format_duration(retry.base), format_duration(retry.longest)
    lines = [
        f"failed messages come again {after}, then after {base} doubling to {longest}",
        f"after {count(topic.max_deliveries, 'failure')} they go to {topic.dead_letter}",
    ]
    limit = topic.rate_limit
    if limit is not None:
        pause = f", {limit.burst:,} at once after a pause" if limit.burst > 1 else ""
        lines.append(f"at most {limit.per_second:g} messages a second are delivered{pause}")
    idle = topic.group_idle_retention
    forgotten = "never" if idle is None else f"after {format_duration(idle)} without use"
    lines.append(f"shared groups are forgotten {forgotten}")
    return lines
