"""The groups as a leader sees them: all that is applied, and all that it proposed since.

What is decided takes effect on the copy at once, and is handed over as operations to be proposed.
So a lease can leave before it is committed, and nothing is ever given out twice. When leadership
ends, the copy is thrown away.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from quivermq.batches.limits import MIB
from quivermq.errors import Fenced, InvalidRequest, Overloaded, QuiverError
from quivermq.queue.group import Group
from quivermq.queue.groups import Op, packed
from quivermq.queue.names import check_name
from quivermq.queue.partition import Partition

GROUPS_MAX: Final = 10_000
TRIMMED_AT_ONCE: Final = 500
"""Groups that hear in one go that something was deleted: whoever leads has others to serve."""
STATE_BYTES_MAX: Final = 256 * MIB
"""What a checkpoint may hold."""


class WorkingCopy:
    """Groups, and what has to be proposed to make them true everywhere."""

    def __init__(
        self,
        partition: Partition,
        *,
        groups_max: int = GROUPS_MAX,
        state_bytes_max: int = STATE_BYTES_MAX,
    ) -> None:
        self._partition = partition
        self._groups_max = groups_max
        self._state_bytes_max = state_bytes_max
        self._operations: list[bytes] = []
        self._begin = 0
        """What was last trimmed, maybe not everywhere yet."""
        self.groups = partition.groups.fork()
        self.refusal: QuiverError | None = None
        """Not None: nothing can be proposed now, so nothing may change here, and why."""

    def take_operations(self) -> list[bytes]:
        """What has to be proposed, in order, since the last call."""
        taken, self._operations = self._operations, []
        return taken

    @property
    def has_operations(self) -> bool:
        """Whether something has to be proposed."""
        return bool(self._operations)

    def _start_again(self, proposed: Iterable[bytes]) -> None:
        """Start from what is applied and the bodies of entries that are under way."""
        self.groups = self._partition.groups.fork()
        self._operations = []
        for body in proposed:
            self.groups.apply_ahead(body)

    def _propose(self, *operation: Any) -> None:
        """Carry an operation out here, and have it carried out everywhere."""
        self._check_taken()
        self.groups.carry_out(list(operation))
        self._operations.append(packed(operation))

    def _check_taken(self) -> None:
        """Raise the refusal, if there is one: before anything is changed that it would undo."""
        if self.refusal is not None:
            raise self.refusal

    # What may grow.

    @property
    def state_bytes(self) -> int:
        """What the state takes once all that was said here is applied, more or less."""
        applied = self._partition
        return applied.size_bytes - applied.groups.size_bytes + self.groups.size_bytes

    @property
    def is_full(self) -> bool:
        """Whether half of what a checkpoint may hold is taken: nothing new is begun then, and what
        is under way can end in the other half."""
        return self.state_bytes > self._state_bytes_max // 2

    @property
    def is_brimful(self) -> bool:
        """Whether also what is under way may only end in ways that take no more room."""
        return self.state_bytes > self._state_bytes_max * 3 // 4

    def check_room(self) -> None:
        """Raise `Overloaded` where something new would be begun and there is no room for it."""
        if self.is_full:
            raise self.no_room()

    def no_room(self) -> Overloaded:
        return state_is_full(self.state_bytes, self._state_bytes_max)

    # Groups.

    def has_group(self, group: str) -> bool:
        return group in self.groups.by_name

    def open_group(self, group: str, start: int) -> None:
        """Let a group share work, from `start` on, unless it does already."""
        found = self._made(group)
        if not found.is_shared:
            # Who was sought, or committed, before it shared anything goes on from there.
            begin = start if found.committed is None else found.committed
            self._propose(Op.SHARE, found.number, self._findable(begin))

    def _findable(self, offset: int) -> int:
        """A log may hold more than its index knows of, where another leader dropped it: what no
        cursor finds would wait for ever."""
        return max(offset, self._begin, self._partition.priority_index.begin)

    def _made(self, name: str) -> Group:
        found = self.groups.by_name.get(name)
        if found is None:
            check_name("the name of a group", name)
            self.check_room()
            if len(self.groups) >= self._groups_max:
                raise Overloaded(f"{len(self.groups)} groups use this partition: delete some first")
            self._propose(Op.CREATE, self.groups.next_number, name)
            found = self.groups.by_name[name]
        return found

    def _shared(self, name: str) -> Group:
        found = self.groups.by_name.get(name)
        if found is None or not found.is_shared:
            raise InvalidRequest(f"no group {name!r} shares work here: poll with it first")
        return self.groups.own(found.number)

    def drop(self, group: str) -> None:
        """Forget a group; nothing if it is not known."""
        found = self.groups.by_name.get(group)
        if found is not None:
            self._propose(Op.DROP, found.number)

    def trim(self, begin: int) -> bool:
        """Retention deleted what is below `begin`. False: not all groups have heard; go on soon."""
        behind = list(islice(self.groups.behind(begin), TRIMMED_AT_ONCE + 1))
        if not behind:
            return True
        self._begin = begin
        if len(behind) <= TRIMMED_AT_ONCE:
            self._propose(Op.TRIM, begin)
            return True
        for number in behind[:TRIMMED_AT_ONCE]:
            self._propose(Op.PASS, number, begin)
        return False

    # Committed offsets.

    def committed(self, group: str) -> int | None:
        """How far a group says that it has got."""
        found = self.groups.by_name.get(group)
        return None if found is None else found.committed

    def commit(self, group: str, offset: int, epoch: int = 0) -> None:
        """Remember how far a group has got; raises `Fenced` for who lost the partition."""
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise InvalidRequest(f"group {group} cannot commit offset {offset!r}")
        if epoch:
            self.check_claim(group, epoch)
        self._propose(Op.COMMIT, self._made(group).number, offset)

    def claim(self, group: str, epoch: int) -> int | None:
        """Fence everybody with a lower epoch; returns the committed offset."""
        found = self._made(group)
        self._check_epoch(found, epoch)
        if epoch > found.claimed:
            self._propose(Op.CLAIM, found.number, epoch)
        return found.committed

    def check_claim(self, group: str, epoch: int) -> None:
        """Raise `Fenced` unless the partition is claimed with this epoch."""
        found = self.groups.by_name.get(group)
        if found is None or epoch > found.claimed:
            raise InvalidRequest(f"epoch {epoch} of group {group} was never claimed here")
        self._check_epoch(found, epoch)

    def _check_epoch(self, group: Group, epoch: int) -> None:
        if epoch < group.claimed:
            raise Fenced(
                f"another member of group {group.name} has taken this partition over: join again"
            )


def state_is_full(used: int, limit: int) -> Overloaded:
    """The answer to whoever would make a state larger that should not grow."""
    return Overloaded(
        f"the state of this partition takes {used:,} of {limit:,} bytes: settle what is leased in "
        "whole leases, let dead letters be moved, delete or seek groups that are not needed, and "
        "try again"
    )
