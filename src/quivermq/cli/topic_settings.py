"""Converts the options of `quiver topic` to the client's arguments, and settings to sentences.

Options and arguments follow `quivermq.topic_settings`: only the sentences are written here.
"""

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import as_parser, duration_option, number_option, size_option
from quivermq.cli.output import count
from quivermq.quantities import format_duration, format_size
from quivermq.topic_settings import SETTINGS, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quivermq.client import GroupInfo, RateLimit, Retention, TopicInfo

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smh]))?", re.ASCII)
_RATE_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
_DELIVERY: Final = "Delivery to groups"


def _parse_count(text: str) -> int:
    if not text.replace("_", "").isdecimal():
        raise ValueError(f"{text!r} is not a number of messages: write 1000000, or none")
    return int(text)


def _parse_rate(text: str) -> float:
    """Messages a second."""
    found = _RATE.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is not a rate: write 0.5, 100/s, 30/m, 5/h, or none")
    return float(found[1]) / _RATE_SECONDS[found[2] or "s"]


def _option(setting: Setting) -> Any:
    """An option that takes `none` yields 0 for it, which lifts the limit."""
    none = setting.zero == "none"
    more: dict[str, Any] = {"rich_help_panel": _DELIVERY} if setting.is_delivery else {}
    match setting.kind:
        case "duration":
            return Annotated[float | None, duration_option(setting.help, none=none, **more)]
        case "size":
            return Annotated[float | None, size_option(setting.help, none=none, **more)]
        case "number":
            return Annotated[int | None, number_option(setting.help, **more)]
        case "flag":
            name = setting.option.replace("_", "-")
            flag = typer.Option(
                f"--{name}/--no-{name}", show_default=False, help=setting.help, **more
            )
            return Annotated[bool | None, flag]
        case "text":
            return Annotated[str | None, typer.Option(metavar="TOPIC", help=setting.help, **more)]
    parse, metavar = (_parse_rate, "RATE") if setting.kind == "rate" else (_parse_count, "N")
    parser = as_parser(parse, none=none)
    option = typer.Option(metavar=metavar, parser=parser, help=setting.help, **more)
    return Annotated[float | None, option]


OPTIONS: Final[dict[str, Any]] = {setting.option: _option(setting) for setting in SETTINGS}


def changed_settings(
    given: "Mapping[str, Any]", before: "TopicInfo | None" = None
) -> dict[str, Any]:
    """The client's arguments for the options given; the rest is as it was `before`."""
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    made: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {"retention": {}, "rate_limit": {}, "retry": {}}
    for setting in SETTINGS:
        if setting.option in given:
            value = given[setting.option]
            value = None if setting.zero == "none" and not value else value
            place = parts[setting.argument] if setting.part else made
            place[setting.part or setting.argument] = value
    made["retention"] = replace(
        before.retention if before else quivermq.Retention(), **parts["retention"]
    )
    made["retry"] = replace(before.retry if before else quivermq.Retry(), **parts["retry"])
    made["rate_limit"] = _changed_rate_limit(
        parts["rate_limit"], before.rate_limit if before else None
    )
    return made


def _changed_rate_limit(
    given: "Mapping[str, Any]", before: "RateLimit | None"
) -> "RateLimit | None":
    import quivermq  # noqa: PLC0415  (help and completion need no client)

    limit = {**(asdict(before) if before else {}), **given}
    if limit.get("per_second"):
        return quivermq.RateLimit(**limit)
    if "burst" in given:
        raise UsageError("--burst needs a rate limit: add --rate-limit")
    return None


def format_retention(retention: "Retention") -> str:
    """The retention in a few words."""
    parts = []
    if retention.max_age:
        parts.append(f"for {format_duration(retention.max_age_ms / 1000)}")
    if retention.max_bytes:
        parts.append(f"up to {format_size(retention.max_bytes)}")
    if retention.max_messages:
        parts.append(f"up to {count(retention.max_messages, 'message')}")
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
    if topic.drop_expired:
        lines.append("messages whose ttl is over are dropped")
    return lines
