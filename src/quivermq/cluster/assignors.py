"""Assignors: which member of a sticky group gets which partition.

Pure functions, found by name in `ASSIGNORS`. Each gets the partitions, the members, and the
owners so far; each gives every partition to exactly one member, as evenly as can be: the loads of
two members differ by one at most. What they do depends on nothing else, not even on the order of
the members.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final

Assignor = Callable[[Sequence[int], Sequence[int], Mapping[int, int]], dict[int, int]]
"""(partitions, members, owner by partition so far) -> owner by partition."""


def sticky(
    partitions: Sequence[int], members: Sequence[int], current: Mapping[int, int]
) -> dict[int, int]:
    """Balance with the fewest moves: a member with too many gives up those that are named last.

    Balanced, `extra` members have one partition more than the `least` of the others. So a member
    can keep `least`, and one more if it is among the extra ones; it is best to let those be extra
    that have more than `least` to keep. Nothing that is balanced keeps more.
    """
    if not members:
        return {}
    held: dict[int, list[int]] = {member: [] for member in sorted(members)}
    free: list[int] = []
    for partition in partitions:
        held.get(current.get(partition, -1), free).append(partition)
    least, extra = divmod(len(partitions), len(held))
    richest_first = sorted(held, key=lambda member: -len(held[member]))
    quotas = dict(zip(richest_first, chain(repeat(least + 1, extra), repeat(least)), strict=False))
    for member, kept in held.items():
        free += kept[quotas[member] :]
        del kept[quotas[member] :]
    open_places = (
        member for member in held for _ in range(quotas[member] - len(held[member]))
    )  # consumed in the order of the members
    owners = {partition: member for member, kept in held.items() for partition in kept}
    owners.update(zip(sorted(free), open_places, strict=True))
    return dict(sorted(owners.items()))


def round_robin(
    partitions: Sequence[int],
    members: Sequence[int],
    current: Mapping[int, int],  # noqa: ARG001 - it starts over each time
) -> dict[int, int]:
    """Members take turns, partition by partition."""
    if not members:
        return {}
    order = sorted(members)
    return {
        partition: order[place % len(order)] for place, partition in enumerate(sorted(partitions))
    }


def ranges(
    partitions: Sequence[int],
    members: Sequence[int],
    current: Mapping[int, int],  # noqa: ARG001 - it starts over each time
) -> dict[int, int]:
    """Neighbours together: each member gets partitions in a row."""
    if not members:
        return {}
    order = sorted(members)
    least, extra = divmod(len(partitions), len(order))
    shares = chain.from_iterable(
        repeat(member, least + (place < extra)) for place, member in enumerate(order)
    )
    return dict(zip(sorted(partitions), shares, strict=True))


def moves_needed(
    partitions: Sequence[int], members: Sequence[int], current: Mapping[int, int]
) -> int:
    """How many partitions with a live owner have to change it, in any balanced assignment."""
    loads: dict[int, int] = defaultdict(int, dict.fromkeys(members, 0))
    live = frozenset(members)
    owned = [current[each] for each in partitions if current.get(each) in live]
    for owner in owned:
        loads[owner] += 1
    least, extra = divmod(len(partitions), max(1, len(loads)))
    kept = sum(min(load, least) for load in loads.values())
    kept += min(extra, sum(load > least for load in loads.values()))
    return len(owned) - kept


ASSIGNORS: Final[dict[str, Assignor]] = {
    "sticky": sticky,
    "round-robin": round_robin,
    "range": ranges,
}
"""By the names that users give."""
