"""The working copy of a leader: groups as applied, with all that was proposed since.

A decision takes effect on the copy at once, and is kept as an operation to be proposed. So a lease
can leave before it is committed, and no message is ever given out twice. When leadership ends, the
copy is thrown away.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from quivermq.batches import MIB
from quivermq.errors import Fenced, InvalidRequest, Overloaded, QuiverError
from quivermq.names import check_group_name
from quivermq.queue.group import Group
from quivermq.queue.groups import Op, pack_operation
from quivermq.queue.partition import Partition

GROUPS_MAX: Final = 10_000
TRIMMED_AT_ONCE: Final = 500
"""Groups that are trimmed in one go: a leader has other requests to serve."""
STATE_BYTES_MAX: Final = 256 * MIB
"""The size that a checkpoint may have."""


class WorkingCopy:
    """Groups, and the operations that make the same of them on every replica."""

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
        self.operations: list[bytes] = []
        """To be proposed, in order; carried out here already."""
        self._begin = 0
        """Below this, messages were trimmed; maybe not on every replica yet."""
        self.groups = partition.groups.fork()
        self.refusal: QuiverError | None = None
        """Not None: nothing can be proposed now, so nothing may change here, and why."""

    def take_operations(self) -> list[bytes]:
        """The operations since the last call, to be proposed in order."""
        taken, self.operations = self.operations, []
        return taken

    @property
    def has_operations(self) -> bool:
        """Whether there are operations to be proposed."""
        return bool(self.operations)

    def restart(self, proposed: Iterable[bytes]) -> None:
        """Start from what is applied and the bodies of entries that are under way."""
        self.groups = self._partition.groups.fork()
        self.operations = []
        for body in proposed:
            self.groups.apply_ahead(body)

    def propose(self, *operation: Any) -> None:
        """Carry an operation out here, and keep it to be proposed."""
        self.check_refusal()
        self.groups.carry_out(list(operation))
        self.operations.append(pack_operation(operation))

    def check_refusal(self) -> None:
        """Raise the refusal, if there is one: before anything is changed here."""
        if self.refusal is not None:
            raise self.refusal

    # Room.

    @property
    def state_bytes(self) -> int:
        """The size of the state once all operations are applied, more or less."""
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
        found = self.ensure_group(group)
        if not found.is_shared:
            # A group that was sought, or committed, before it shared anything goes on from there.
            begin = start if found.committed is None else found.committed
            self.propose(Op.SHARE, found.number, self.first_findable(begin))

    def first_findable(self, offset: int) -> int:
        """`offset`, or the first one that the index knows. A log may hold more, where another
        leader dropped it: what no cursor finds would wait for ever."""
        return max(offset, self._begin, self._partition.priority_index.begin)

    def ensure_group(self, name: str) -> Group:
        """The group of that name; made if there is none."""
        found = self.groups.by_name.get(name)
        if found is None:
            check_group_name(name)
            self.check_room()
            if len(self.groups) >= self._groups_max:
                raise Overloaded(f"{len(self.groups)} groups use this partition: delete some first")
            self.propose(Op.CREATE, self.groups.next_number, name)
            found = self.groups.by_name[name]
        return found

    def shared_group(self, name: str) -> Group:
        """A group that shares work, to be changed; raises `InvalidRequest` for any other."""
        found = self.groups.by_name.get(name)
        if found is None or not found.is_shared:
            raise InvalidRequest(f"no group {name!r} shares work here: poll with it first")
        return self.groups.own(found.number)

    def drop(self, group: str) -> None:
        """Forget a group; nothing if it is not known."""
        found = self.groups.by_name.get(group)
        if found is not None:
            self.propose(Op.DROP, found.number)

    def trim(self, begin: int) -> bool:
        """Retention deleted what is below `begin`. False: not of all groups; go on soon."""
        behind = list(islice(self.groups.behind(begin), TRIMMED_AT_ONCE + 1))
        if not behind:
            return True
        self._begin = begin
        if len(behind) <= TRIMMED_AT_ONCE:
            self.propose(Op.TRIM, begin)
            return True
        for number in behind[:TRIMMED_AT_ONCE]:
            self.propose(Op.PASS, number, begin)
        return False

    # Committed offsets.

    def committed(self, group: str) -> int | None:
        """The committed offset of a group."""
        found = self.groups.by_name.get(group)
        return None if found is None else found.committed

    def commit(self, group: str, offset: int, epoch: int = 0) -> None:
        """Commit an offset of a group; raises `Fenced` for a member that lost the partition."""
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise InvalidRequest(f"group {group} cannot commit offset {offset!r}")
        if epoch:
            self.check_claim(group, epoch)
        self.propose(Op.COMMIT, self.ensure_group(group).number, offset)

    def claim(self, group: str, epoch: int) -> int | None:
        """Fence all members with a lower epoch; returns the committed offset."""
        found = self.ensure_group(group)
        self._check_epoch(found, epoch)
        if epoch > found.claimed:
            self.propose(Op.CLAIM, found.number, epoch)
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
    """The answer to a request that would make a full state larger."""
    return Overloaded(
        f"the state of this partition takes {used:,} of {limit:,} bytes: settle what is leased in "
        "whole leases, let dead letters be moved, delete or seek groups that are not needed, and "
        "try again"
    )
