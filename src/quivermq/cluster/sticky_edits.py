"""Changes of sticky groups as edits of the catalog, many groups at once."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quivermq.cluster.catalog_view import View
from quivermq.cluster.edits import Edit
from quivermq.cluster.sticky import (
    MEMBERS_MAX,
    STICKY_PARTITIONS_MAX,
    StickyChanges,
    StickyGroup,
    sticky_key,
)
from quivermq.errors import InvalidRequest, Overloaded, QuiverError

STICKY_GROUPS_MAX: Final = 10_000
_EDIT_BYTES: Final = 1 << 20
"""As much as one edit is filled with; a single group may need more."""
_MEMBER_BYTES, _PARTITION_BYTES = 100, 80


class StickyName(NamedTuple):
    """A sticky group, as its members name it."""

    topic: str
    group: str


class Regrouping(NamedTuple):
    """The result of changes."""

    edit: Edit | None
    done: list[StickyName]
    """Those in the edit, or without need of one."""
    refused: dict[StickyName, QuiverError]
    """The others did not fit, and come next."""


def regroup(view: View, changes: Mapping[StickyName, StickyChanges]) -> Regrouping:
    """Apply changes to groups, as many as fit into one edit."""
    edit, done, refused = Edit(), [], {}
    size, groups = 0, len(view.sticky)
    for name, change in changes.items():
        if size > _EDIT_BYTES:
            break
        try:
            topic = view.topic(name.topic)
            key = sticky_key(topic.id, name.group)
            before = view.sticky.get(key)
            if before is None:
                before = StickyGroup(topic.id, name.group, view.version, change.assignor)
                groups += 1
            after = before.changed(change, len(topic.partitions))
            _check(after, before, groups)
        except QuiverError as error:
            refused[name] = error
            continue
        done.append(name)
        if not after.members:
            edit |= Edit(delete=[key] if key in view.sticky else [])
        elif after is not before:
            size += _MEMBER_BYTES * len(after.members) + _PARTITION_BYTES * len(after.owners)
            edit |= Edit({key: after.to_json()})
    return Regrouping(edit if edit.put or edit.delete else None, done, refused)


def _check(after: StickyGroup, before: StickyGroup, groups: int) -> None:
    if len(after.members) > max(MEMBERS_MAX, len(before.members)):
        raise Overloaded(f"a sticky group has at most {MEMBERS_MAX:,} members; close some first")
    if len(after.owners) > max(STICKY_PARTITIONS_MAX, len(before.owners)):
        raise InvalidRequest(
            f"sticky groups are for topics of at most {STICKY_PARTITIONS_MAX:,} partitions: use a "
            "shared group"
        )
    if groups > STICKY_GROUPS_MAX and not before.members and after.members:
        raise Overloaded(
            f"there are {STICKY_GROUPS_MAX:,} sticky groups with members; close some first"
        )
