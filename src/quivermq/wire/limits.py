"""Limits what one request may ask for, by name: checked before any work is done for it.

Every repeated field of a request has a limit here. `tests/wire/test_limits.py` walks over the
protocol, and fails for a field that has none.
"""

from collections.abc import Mapping
from typing import Final

from quivermq.batches import MIB
from quivermq.errors import TooLarge
from quivermq.wire.generated import quiver_pb2 as proto

TOPICS_NAMED_MAX: Final = 1_000
PARTITIONS_NAMED_MAX: Final = 10_000
DESCRIBED_BY_NAME_MAX: Final = 1_000
"""Partitions that one broker asks another about at once."""
ADDRESSES_MAX: Final = 100
FEATURES_MAX: Final = 100
LIVES_MAX: Final = 1_000
MEMBERS_MAX: Final = 4_096
VERDICTS_MAX: Final = 10_000
INTERVALS_MAX: Final = 100_000

FRAMES_MAX: Final = 1_024
"""Batches in one request; a batch holds as many messages as one likes."""

ANSWER_BYTES_MAX: Final = 12 * MIB
"""The largest answer, without its batches. A client refuses envelopes of 16 MiB."""

ITEMS_MAX: Final[Mapping[str, int]] = {
    "hello.features": FEATURES_MAX,
    "map.topics": TOPICS_NAMED_MAX,
    "describe_topics.topics": TOPICS_NAMED_MAX,
    "describe_partitions.partitions": DESCRIBED_BY_NAME_MAX,
    "list_offsets.positions": PARTITIONS_NAMED_MAX,
    "committed_offsets.partitions": PARTITIONS_NAMED_MAX,
    "poll.partitions": PARTITIONS_NAMED_MAX,
    "await_ready.partitions": PARTITIONS_NAMED_MAX,
    "settle.settlements": VERDICTS_MAX,
    "settle.settlements.intervals": INTERVALS_MAX,
    "release_consumer.partitions": PARTITIONS_NAMED_MAX,
    "describe_groups.partitions": PARTITIONS_NAMED_MAX,
    "cancel_delayed.intervals": INTERVALS_MAX,
    "redrive.intervals": INTERVALS_MAX,
    "redrive_to.intervals": INTERVALS_MAX,
    "revive.pieces": VERDICTS_MAX,
    "sticky_beat.released": PARTITIONS_NAMED_MAX,
    "bootstrap.addresses": ADDRESSES_MAX,
    "register_broker.lives": LIVES_MAX,
    "reconfigure.members": MEMBERS_MAX,
}
"""By the field's path in a request. Of a field inside a repeated one, all are counted together."""


def _by_kind() -> dict[str, list[tuple[list[str], int]]]:
    found: dict[str, list[tuple[list[str], int]]] = {}
    for path, most in ITEMS_MAX.items():
        kind, *names = path.split(".")
        found.setdefault(kind, []).append((names, most))
    return found


_BY_KIND: Final = _by_kind()


def check_items(request: proto.Request) -> None:
    """Raise `TooLarge` if a request names more of something than it may."""
    kind = request.WhichOneof("body") or ""
    for names, most in _BY_KIND.get(kind, ()):
        parts = [getattr(request, kind)]
        for name in names[:-1]:
            parts = [inner for part in parts for inner in getattr(part, name)]
        count = sum(len(getattr(part, names[-1])) for part in parts)
        if count > most:
            raise TooLarge(
                f"{kind} with {count:,} {names[-1]} is above the limit of {most:,}: "
                "ask for fewer at once"
            )


def check_answer(size: int, instead: str) -> None:
    """Raise `TooLarge` if an answer would take more than a client accepts; `instead` says what to
    ask for."""
    if size > ANSWER_BYTES_MAX:
        raise TooLarge(
            f"the answer would take about {size:,} bytes, above the limit of "
            f"{ANSWER_BYTES_MAX:,}: {instead}"
        )
