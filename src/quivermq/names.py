"""Checks the names of topics, groups and zones.

A topic's name is also the name of a folder, so what passes here must be harmless as one.
"""

import re
from typing import Final

from quivermq.errors import InvalidRequest, TooLarge

NAME_CHARACTERS_MAX: Final = 200

SYSTEM_TOPICS: Final = ("_spark.", "_pipelines")
"""How the names of topics begin that our own tools keep, beside those of users."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def check_topic_name(name: str, *, internal: bool = False) -> None:
    """Raise `InvalidRequest` unless a topic may be called so; names with `_` first are our own."""
    check_name("topic", name)
    # A catalog may hold some of those from before.
    if name.startswith("-") and not internal:
        raise InvalidRequest(
            f"a command would take a topic that starts with '-' for a flag: {name!r}"
        )
    if name.startswith("_") and not (internal or name.startswith(SYSTEM_TOPICS)):
        raise InvalidRequest(f"topic names that start with '_' are reserved: {name!r}")


def check_group_name(name: str) -> None:
    """Raise `InvalidRequest` unless a group may be called so."""
    check_name("group", name)


def check_zone_name(name: str) -> None:
    """Raise `InvalidRequest` unless a zone may be called so; "" is no zone."""
    if name:
        check_name("zone", name)


def check_name(what: str, name: str) -> None:
    """Raise `InvalidRequest` unless `name` can be the name of a topic, group or zone."""
    if len(name) > NAME_CHARACTERS_MAX:
        raise TooLarge(
            f"a {what} name has at most {NAME_CHARACTERS_MAX} characters, this one {len(name)}"
        )
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidRequest(
            f"{name!r} is no {what} name: use 1 to {NAME_CHARACTERS_MAX} letters of the Latin "
            "alphabet, digits, '.', '_' or '-', and not '.' or '..'"
        )
