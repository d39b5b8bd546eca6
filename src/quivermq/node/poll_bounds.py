"""What polls may ask for."""

from collections.abc import Sequence
from typing import Final

from quivermq.errors import InvalidRequest
from quivermq.node.clerks import check_group
from quivermq.wire import proto

_BYTES_DEFAULT: Final = 4 << 20
_BYTES_MAX: Final = 32 << 20
_MESSAGES_MAX: Final = 100_000
_PARTITIONS_MAX: Final = 10_000


def bytes_wanted(body: proto.Poll) -> int:
    """How much a poll may answer with; one message may be larger."""
    return min(body.bytes_max or _BYTES_DEFAULT, _BYTES_MAX)


def check_poll(body: proto.Poll) -> None:
    """Raise `InvalidRequest` unless it can be answered."""
    check_names(body.group, body.partitions)
    if not 1 <= body.messages_max <= _MESSAGES_MAX:
        raise InvalidRequest(f"a poll takes 1 to {_MESSAGES_MAX} messages, not {body.messages_max}")


def check_names(group: str, partitions: Sequence[int]) -> None:
    """Raise `InvalidRequest` unless a group may ask for these."""
    check_group(group)
    if not partitions:
        raise InvalidRequest("name at least one partition")
    if len(partitions) > _PARTITIONS_MAX:
        raise InvalidRequest(f"name at most {_PARTITIONS_MAX} partitions, not {len(partitions)}")
