"""The catalog: a versioned map from keys to JSON values.

The metadata partition keeps its records here; in every other partition it is empty. A change names
the version that it was made from. If that is not the version when it is applied, nothing at all
happens, on every replica alike: the author of the change reads again and decides anew.

Checked before it is proposed, so that applying cannot fail: whatever `catalog_command` made can be
read by `json` anywhere. Stored as JSON with sorted keys: the same bytes everywhere.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from quivermq.batches import Buffer
from quivermq.errors import BrokenInvariant, InvalidRequest, TooLarge

KEY_CHARACTERS_MAX: Final = 300
CHANGE_BYTES_MAX: Final = 4 << 20
DEPTH_MAX: Final = 32
"""Lists and objects in one another: how deep a reader can go is no business of its stack."""

Json = Any
"""None, bool, int, float, str, or lists and string-keyed dicts of them."""


class Catalog:
    """The map and its version. Readers must not change it."""

    __slots__ = ("size_bytes", "values", "version")

    def __init__(self) -> None:
        self.version = 0
        """Counts the changes that took effect."""
        self.values: dict[str, Json] = {}
        self.size_bytes = 0
        """Of all keys and values as JSON."""

    def apply(self, body: Buffer) -> bool:
        """A committed change; False if it was made from another version and does nothing."""
        change = json.loads(bytes(body))
        if change["base"] != self.version:
            return False
        for key in (*change["put"], *change["delete"]):
            if key in self.values:
                self.size_bytes -= _size(key, self.values.pop(key))
        for key, value in change["put"].items():
            self.values[key] = value
            self.size_bytes += _size(key, value)
        self.version += 1
        return True

    def fork(self) -> "Catalog":
        """The same, to be changed apart: values are shared, since they never change."""
        made = Catalog()
        made.version, made.size_bytes, made.values = (
            self.version,
            self.size_bytes,
            dict(self.values),
        )
        return made

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries; none for an empty one."""
        return _encoded({"version": self.version, "values": self.values}) if self.version else b""

    @classmethod
    def unpack(cls, data: Buffer) -> "Catalog":
        catalog = cls()
        if len(data):
            found = json.loads(bytes(data))
            catalog.version, catalog.values = found["version"], found["values"]
            catalog.size_bytes = sum(_size(*item) for item in catalog.values.items())
        return catalog

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless the content can have come from changes."""
        if self.version < 0 or (self.values and not self.version):
            raise BrokenInvariant(f"{len(self.values)} keys at catalog version {self.version}")
        size = sum(_size(*item) for item in self.values.items())
        if size != self.size_bytes:
            raise BrokenInvariant(f"the catalog has {size} bytes and counts {self.size_bytes}")


def catalog_change(base: int, put: Mapping[str, Json], delete: Iterable[str] = ()) -> bytes:
    """The body of a change, checked; `base` is the version that it was made from."""
    deleted = sorted(set(delete))
    if isinstance(base, bool) or not isinstance(base, int) or not 0 <= base < 2**63:
        raise InvalidRequest(f"a catalog version counts from 0: {base!r}")
    for key in (*put, *deleted):
        if not isinstance(key, str) or not 1 <= len(key) <= KEY_CHARACTERS_MAX:
            raise InvalidRequest(
                f"a key of the catalog has 1 to {KEY_CHARACTERS_MAX} characters: {str(key)[:50]!r}"
            )
    both = [key for key in deleted if key in put]
    if both:
        raise InvalidRequest(f"{both[0]!r} is both put and deleted")
    for key, value in put.items():
        _check_value(key, value, DEPTH_MAX)
    try:
        body = _encoded({"base": base, "put": dict(put), "delete": deleted})
    except ValueError as error:
        raise InvalidRequest(f"the catalog holds JSON values only: {error}") from error
    if len(body) > CHANGE_BYTES_MAX:
        raise TooLarge(
            f"a change of the catalog of {len(body):,} bytes; {CHANGE_BYTES_MAX:,} are allowed: "
            "make several"
        )
    return body


def _check_value(key: str, value: Json, depth: int) -> None:
    """Refuse what JSON would change on the way, or not bring back."""
    if depth == 0:
        raise InvalidRequest(f"the value of {key!r} is nested deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise InvalidRequest(f"the value of {key!r} has a name that is no text: {name!r}")
            _check_value(key, part, depth - 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_value(key, part, depth - 1)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise InvalidRequest(f"the value of {key!r} holds {type(value).__name__}, which is no JSON")


def _size(key: str, value: Json) -> int:
    return len(key) + len(_encoded(value))


def _encoded(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
