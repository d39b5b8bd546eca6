"""A topic's settings on the command line: their options, the values they make, how they read.

A new setting needs an entry in `OPTIONS`, and in `changed_settings` the argument of the client
that it becomes.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import as_parser, duration_option, number_option, size_option
from quivermq.cli.output import count
from quivermq.cli.quantities import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quivermq.client import GroupInfo, RateLimit, Retention, TopicInfo

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smh]))?", re.ASCII)
_RATE_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
_DELIVERY: Final[dict[str, Any]] = {"rich_help_panel": "Delivery to groups"}


def _parse_message_count(text: str) -> int:
    if not text.replace("_", "").isdecimal():
        raise ValueError(f"{text!r} is no number of messages: write 1000000, or none")
    return int(text)


def _parse_rate(text: str) -> float:
    """Messages a second."""
    found = _RATE.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no rate: write 0.5, 100/s, 30/m, 5/h, or none")
    return float(found[1]) / _RATE_SECONDS[found[2] or "s"]


# An option that takes `none` yields 0 for it, which lifts the limit.
OPTIONS: Final[dict[str, Any]] = {
    "max_age": Annotated[
        float | None,
        duration_option("Drop messages older than this: 12h, 7d; none: keep them.", none=True),
    ],
    "max_bytes": Annotated[
        float | None,
        size_option(
            "Drop the oldest messages of a partition past this: 500MB, 10GB; none: keep them.",
            none=True,
        ),
    ],
    "max_messages": Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=as_parser(_parse_message_count, none=True),
            help="Drop the oldest messages of a partition past so many; none: keep them.",
        ),
    ],
    "keep_until_archived": Annotated[
        bool | None,
        typer.Option(
            "--keep-until-archived/--no-keep-until-archived",
            show_default=False,
            help="Drop only messages that `quiver pipeline archive` has archived.",
        ),
    ],
    "delete_acked": Annotated[
        bool | None,
        typer.Option(
            "--delete-acked/--no-delete-acked",
            show_default=False,
            help="Also drop messages that every group has done; without groups, none.",
        ),
    ],
    "rate_limit": Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            parser=as_parser(_parse_rate, none=True),
            help="Deliver at most so many, over all groups: 0.5, 100/s, 30/m; none: no limit.",
            **_DELIVERY,
        ),
    ],
    "burst": Annotated[
        int | None, number_option("Deliver up to so many at once after a pause.", **_DELIVERY)
    ],
    "max_deliveries": Annotated[
        int | None,
        number_option("A message that failed so often becomes a dead letter.", **_DELIVERY),
    ],
    "dead_letter": Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Where dead letters go; default: TOPIC.dlq.", **_DELIVERY
        ),
    ],
    "retry_first": Annotated[
        float | None,
        duration_option("Backoff after a message's first failure.", **_DELIVERY),
    ],
    "retry_base": Annotated[
        float | None,
        duration_option("Backoff after the second; it doubles with each further one.", **_DELIVERY),
    ],
    "retry_longest": Annotated[float | None, duration_option("The longest backoff.", **_DELIVERY)],
    "group_idle_retention": Annotated[
        float | None,
        duration_option(
            "Delete a shared group that is unused for so long: 12h, 7d; none: never.",
            none=True,
            **_DELIVERY,
        ),
    ],
}


def changed_settings(
    given: "Mapping[str, Any]", before: "TopicInfo | None" = None
) -> dict[str, Any]:
    """The client's arguments for the options given; the rest is as it was `before`."""
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    limits: dict[str, Any] = {
        name: given[name] or None
        for name in ("max_age", "max_bytes", "max_messages")
        if name in given
    }
    flags = {name: given[name] for name in ("keep_until_archived", "delete_acked") if name in given}
    waits = {
        name: given[f"retry_{name}"]
        for name in ("first", "base", "longest")
        if f"retry_{name}" in given
    }
    made = {
        "retention": replace(
            before.retention if before else quivermq.Retention(), **limits, **flags
        ),
        "rate_limit": _changed_rate_limit(given, before.rate_limit if before else None),
        "retry": replace(before.retry if before else quivermq.Retry(), **waits),
    }
    made |= {name: given[name] for name in ("max_deliveries", "dead_letter") if name in given}
    if "group_idle_retention" in given:
        made["group_idle_retention"] = given["group_idle_retention"] or None
    return made


def _changed_rate_limit(
    given: "Mapping[str, Any]", before: "RateLimit | None"
) -> "RateLimit | None":
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    per_second = given.get("rate_limit", before.per_second if before else 0.0)
    if not per_second:
        if "burst" in given:
            raise UsageError("--burst needs a rate limit: add --rate-limit")
        return None
    return quivermq.RateLimit(per_second, given.get("burst", before.burst if before else 1))


def format_retention(retention: "Retention") -> str:
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
    return ", ".join(parts) or "forever"


def retention_holders(retention: "Retention", groups: "Sequence[GroupInfo]") -> list[str]:
    """A sentence for each group or archive that keeps messages from being dropped."""
    archives = [group for group in groups if group.mode == "archive"]
    consumers = [group for group in groups if group.mode != "archive"]
    lines = []
    if retention.keep_until_archived:
        lines += [_holder(group) for group in archives]
        if not archives:
            lines.append("nothing is dropped: no archive reads this topic")
    elif retention.delete_acked and consumers:
        # Here an archive counts as a group.
        lines += [_holder(group) for group in archives]
    if retention.delete_acked:
        lines += [_holder(group) for group in consumers]
        if not consumers:
            lines.append("nothing is dropped as done: the topic has no group")
    return lines


def _holder(group: "GroupInfo") -> str:
    left = group.lag + group.in_flight + group.delayed
    return f"kept for {group.name} ({group.mode}): {count(left, 'message')} behind"


def delivery_lines(topic: "TopicInfo") -> list[str]:
    """Sentences about how messages are delivered to groups."""
    retry = topic.retry
    after = "at once" if not retry.first else f"after {format_duration(retry.first)}"
    base, longest = format_duration(retry.base), format_duration(retry.longest)
    lines = [
        f"failed messages are redelivered {after}, then after {base} doubling to {longest}",
        f"after {count(topic.max_deliveries, 'failure')} they go to {topic.dead_letter}",
    ]
    limit = topic.rate_limit
    if limit is not None:
        pause = f", {limit.burst:,} at once after a pause" if limit.burst > 1 else ""
        lines.append(f"at most {limit.per_second:g} messages a second are delivered{pause}")
    idle = topic.group_idle_retention
    deleted = "never" if idle is None else f"after {format_duration(idle)} without use"
    lines.append(f"shared groups are deleted {deleted}")
    return lines
