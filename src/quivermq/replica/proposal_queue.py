"""The proposals of a leader: checks requests, recognises repeats, stamps and remembers entries.

Everything that can be refused is refused here, before it is proposed. A leader knows more than the
applied state: batches that it proposed and that wait to be committed. A repeat of one of those
joins it instead of being proposed again. The lease manager decides about the requests of consumers;
all operations that it makes before the next proposal go into one entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from quivermq.batches import TIMESTAMP_MS_MAX, Frame, FrameKind, Header, Index, Offset, check_batch
from quivermq.errors import InvalidRequest, OutOfSequence, Overloaded, QuiverError, TooLarge
from quivermq.queue import (
    LeaseManager,
    Partition,
    check_restored,
    check_sequence,
    groups_command,
    state_is_full,
)
from quivermq.raft import Dice
from quivermq.replica.effects import Produced, Token
from quivermq.replica.settings import ReplicaSettings

_GATHERED_BYTES_MAX: Final = 256 * 1024
"""Operations of groups that go into one entry."""

T = TypeVar("T")


@dataclass(slots=True)
class PendingProposal:
    """An entry to be, and the tokens that wait for it."""

    frame: Frame
    now_ms: int
    tokens: list[Token]

    @property
    def entry_bytes(self) -> int:
        return len(self.frame)


@dataclass(slots=True)
class GatheredOps(PendingProposal):
    """Operations of groups, which get a frame when no more can join them."""

    operations: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, operation: bytes) -> None:
        self.operations.append(operation)
        self.size += len(operation)

    @property
    def is_full(self) -> bool:
        """Whether nothing can join any more."""
        return self.size > _GATHERED_BYTES_MAX or bool(self.frame.body)

    @property
    def entry_bytes(self) -> int:
        """At most, as long as others can join."""
        return len(self.frame) + self.size + 2 * len(self.operations) + 3

    def seal(self) -> None:
        self.frame = Frame.of(FrameKind.COMMAND, groups_command(self.operations))


@dataclass(slots=True)
class ProducerFlight:
    """The batches of a producer that are in flight: taken in here and not yet applied."""

    epoch: int
    next_sequence: int = 0
    batches: dict[int, PendingProposal] = field(default_factory=dict)

    def add(self, pending: PendingProposal) -> None:
        header = pending.frame.header
        self.batches[header.sequence] = pending
        self.next_sequence = header.sequence + header.count

    def remove(self, header: Header) -> None:
        """The oldest is applied, or the newest refused: in the latter case it may come again."""
        self.batches.pop(header.sequence, None)
        if header.sequence + header.count == self.next_sequence and self.batches:
            self.next_sequence = header.sequence


class ProposalQueue:
    """The proposals of one leadership. Thrown away with it.

    Batches that arrive together are proposed together: one entry of the outbox, one write and one
    message a follower for all of them.
    """

    def __init__(
        self,
        partition: Partition,
        settings: ReplicaSettings,
        dice: Dice,
        state_bytes_max: int | None = None,
    ) -> None:
        self._partition = partition
        self._state_bytes_max = state_bytes_max or settings.checkpoint_bytes_max
        self._settings = settings
        self._dice = dice
        # Behind the last proposed message: what the next one is stamped with.
        self._next_offset = partition.next_offset
        self._timestamp_ms = partition.timestamp_ms
        # Admitted, and not yet proposed.
        self._waiting: list[PendingProposal] = []
        # Proposed, and not yet applied, by index.
        self._proposed: dict[Index, PendingProposal] = {}
        # How many wait for an answer; a repeat that joined its first time counts too.
        self._requests = 0
        # By producer, the newest epoch last: an older one may still be in flight when it is fenced,
        # and counts again if the newer one is refused.
        self._flights: dict[int, list[ProducerFlight]] = {}
        # Made when the first consumer comes.
        self._leases: LeaseManager | None = None
        self._steady_ms = 0
        # The last entry that changes groups, while it is under way.
        self._gathered: GatheredOps | None = None

    def serve(
        self,
        act: Callable[[LeaseManager], T],
        token: Token | None,
        now_ms: int,
        steady_ms: int,
        refusal: QuiverError | None = None,
    ) -> tuple[T, bool]:
        """Serve a consumer with the lease manager. Returns also whether `token` has to wait: for
        any operation of the lease manager so far that is not applied.

        With a `refusal`, the core takes no proposals now: an act that needs one raises it. The
        operations of earlier acts are proposed all the same (`refuse_batches`)."""
        self._check_room()
        self._steady_ms = steady_ms
        if self._leases is None:
            self._leases = LeaseManager(
                self._partition,
                steady_ms,
                self._dice,
                groups_max=self._settings.groups_max,
                state_bytes_max=self._state_bytes_max,
            )
        self._leases.working_copy.refusal = refusal
        try:
            result = act(self._leases)
        finally:
            # An act that raised may have made operations before.
            self._gather(self._leases.working_copy.take_operations(), now_ms)
        if token is None or self._gathered is None:
            return result, False
        self._gathered.tokens.append(token)
        self._requests += 1
        return result, True

    def _gather(self, operations: list[bytes], now_ms: int) -> None:
        for operation in operations:
            gathered = self._gathered
            if gathered is None or gathered.is_full:
                # Also in the midst of one act: an entry must not be too large to store.
                gathered = self._gathered = GatheredOps(Frame.of(FrameKind.COMMAND), now_ms, [])
                self._waiting.append(gathered)
            gathered.add(operation)

    def admit(self, token: Token, frame: Frame, now_ms: int) -> Produced | None:
        """Take a batch in; answers at once if it was stored before.

        Raises the refusal, if there is one.
        """
        header = frame.header
        if not self.check(frame):
            return self._repeat(token, header)
        pending = self._wait(token, frame, now_ms)
        if header.producer_id:
            self._flight_of(header).add(pending)
        return None

    def check(self, frame: Frame) -> bool:
        """Whether a batch may be stored; False if it was before. Raises the refusal, if there is
        one."""
        header = frame.header
        if header.kind != FrameKind.DATA:
            raise InvalidRequest("only batches of messages can be produced")
        if header.producer_id and not self._comes_next(header):
            return False
        self._check_room()
        if header.not_before_ms and not self._partition.priority_index.takes_delayed:
            raise Overloaded("too many delayed batches wait in this partition; try again later")
        self._check_state(header)
        # A body that is not what its header says would be a riddle to every consumer.
        check_batch(frame, self._settings.limits)
        return True

    def admit_restored(self, token: Token, frame: Frame) -> Produced | None:
        """Take in a batch of a backup, or a command that restores; answers at once if the batch
        is there. Nothing else may be proposed before all of it is.

        A batch keeps its offset, its time, and the number of its producer, which is not checked:
        the table of producers is restored as a whole.
        """
        header = frame.header
        self._check_room()
        if header.kind == FrameKind.COMMAND:
            check_restored(frame.body)
            # Made before, it would go on with other groups than those that are restored.
            self._leases = None
            self._wait(token, frame, 0)
            return None
        if header.kind != FrameKind.DATA:
            raise InvalidRequest("only batches of messages, and what was exported, are restored")
        if header.next_offset <= self._partition.next_offset:
            return Produced(header.base_offset, header.count, header.timestamp_ms, is_repeat=True)
        waiting = sum(pending.frame.header.count for pending in self._waiting)
        expected = self._next_offset + waiting
        if header.base_offset < expected:
            raise Overloaded(f"offset {header.base_offset} is being restored; try again")
        if header.base_offset > expected:
            raise OutOfSequence(
                f"a batch at offset {header.base_offset} cannot be restored: {expected} comes next",
                expected=expected,
            )
        check_batch(frame, self._settings.limits)
        self._wait(token, frame, header.timestamp_ms)
        return None

    def admit_command(self, token: Token, frame: Frame, now_ms: int) -> None:
        """Take in a command; its maker has checked it."""
        self._check_room()
        self._wait(token, frame, now_ms)

    def admit_catalog(
        self, token: Token, base: int, frame: Frame, now_ms: int, *, puts: bool
    ) -> None:
        """Take in a change of the catalog that was made from version `base`."""
        catalog = self._partition.catalog
        if base < catalog.version:
            raise catalog_changed()
        limit = self._settings.catalog_bytes_max
        if puts and catalog.size_bytes + len(frame.body) > limit:
            raise TooLarge(
                f"the catalog holds {catalog.size_bytes:,} of {limit:,} bytes: delete first"
            )
        self.admit_command(token, frame, now_ms)

    def _check_state(self, header: Header) -> None:
        """Refuse what would make a state larger that fills a checkpoint already: a delayed batch
        soon, any other in the last resort. What groups have ends before that (`is_brimful`)."""
        used, limit = self._partition.size_bytes, self._state_bytes_max
        if used > limit * 7 // 8 or (header.not_before_ms and used > limit // 2):
            raise state_is_full(used, limit)

    def _check_room(self) -> None:
        most = self._settings.proposals_max
        if self._requests >= most or len(self._proposed) >= most:
            waiting = max(self._requests, len(self._proposed))
            raise Overloaded(f"{waiting} requests wait to be committed; try again")

    def _wait(self, token: Token, frame: Frame, now_ms: int) -> PendingProposal:
        pending = PendingProposal(frame, now_ms, [token])
        self._waiting.append(pending)
        self._requests += 1
        return pending

    def _comes_next(self, header: Header) -> bool:
        flights = self._flights.get(header.producer_id)
        # Also if it was forgotten meanwhile: what it has in flight makes it known again.
        if flights:
            return check_sequence(header, flights[-1].epoch, flights[-1].next_sequence)
        return self._partition.producers.check(header)

    def _repeat(self, token: Token, header: Header) -> Produced | None:
        flights = self._flights.get(header.producer_id)
        pending = flights[-1].batches.get(header.sequence) if flights else None
        if pending is not None and pending.frame.header.body_crc == header.body_crc:
            self._check_room()
            pending.tokens.append(token)
            self._requests += 1
            return None
        stored = self._partition.producers.find_repeat(header)
        return Produced(stored.base_offset, stored.messages, stored.timestamp_ms, is_repeat=True)

    def _flight_of(self, header: Header) -> ProducerFlight:
        flights = self._flights.setdefault(header.producer_id, [])
        if not flights or flights[-1].epoch != header.producer_epoch:
            flights.append(ProducerFlight(header.producer_epoch))
        return flights[-1]

    def stamp_waiting(self, term: int, index: Index) -> list[Frame]:
        """The waiting batches as they go into the log, from `index` on, as many as fit a message.

        Time never goes back nor past what a header can hold, whatever the clock does.
        """
        frames: list[Frame] = []
        size = 0
        for number, pending in enumerate(self._waiting):
            if isinstance(pending, GatheredOps):
                pending.seal()
            size += len(pending.frame)
            if frames and size > self._settings.message_bytes_max:
                break
            frame = self.stamp(pending.frame, term, Index(index + number), pending.now_ms)
            self.follow(frame.header)
            self._proposed[frame.header.index] = pending
            frames.append(frame)
        del self._waiting[: len(frames)]
        return frames

    def stamp(self, frame: Frame, term: int, index: Index, now_ms: int) -> Frame:
        """A batch as it goes into the log next; `follow` it once it does."""
        return frame.stamped(
            term=term,
            index=index,
            base_offset=self._next_offset,
            timestamp_ms=min(max(now_ms, self._timestamp_ms), TIMESTAMP_MS_MAX),
        )

    def follow(self, header: Header) -> None:
        """This entry is in the log: what is stamped next follows it."""
        self._next_offset = header.next_offset
        self._timestamp_ms = header.timestamp_ms

    def refuse_batches(self, frames: list[Frame]) -> list[Token]:
        """The core has no room for what was just stamped: as if the batches in it, and all that
        wait behind them, had never come. Lease operations wait on: a consumer may have the messages
        by now, and there was room when the lease was given. Returns the tokens of the batches."""
        refused = self._take_back(frames)
        self._waiting = [pending for pending in refused if isinstance(pending, GatheredOps)]
        return self._turn_away([one for one in refused if not isinstance(one, GatheredOps)])

    @property
    def is_of_leases_only(self) -> bool:
        """Whether nothing waits but lease operations."""
        return all(isinstance(pending, GatheredOps) for pending in self._waiting)

    def _take_back(self, frames: list[Frame]) -> list[PendingProposal]:
        """Take back what was just stamped, and all behind it, which would leave a gap in its
        producers' sequences."""
        self._next_offset = frames[0].header.base_offset
        taken = [self._proposed.pop(frame.header.index) for frame in frames] + self._waiting
        self._waiting = []
        return taken

    def _turn_away(self, refused: list[PendingProposal]) -> list[Token]:
        for pending in reversed(refused):
            self._forget(pending.frame.header)
        tokens = [token for pending in refused for token in pending.tokens]
        self._requests -= len(tokens)
        return tokens

    def refuse(self, frames: list[Frame]) -> list[Token]:
        """The core takes nothing any more: as if what was just stamped, and all that waits, had
        never come. Returns the tokens of all of it."""
        tokens = self._turn_away(self._take_back(frames))
        self._gathered = None
        if self._leases is not None:
            under_way = [
                entry for entry in self._proposed.values() if isinstance(entry, GatheredOps)
            ]
            self._gathered = under_way[-1] if under_way else None
            bodies = [bytes(entry.frame.body[1:]) for entry in under_way]
            self._leases.begin_again(bodies, self._steady_ms)
        return tokens

    def finish(self, header: Header) -> list[Token]:
        """An entry is applied: the tokens that waited for it."""
        pending = self._proposed.pop(header.index, None)
        if pending is None:
            return []
        self._forget(header)
        self._requests -= len(pending.tokens)
        tokens = pending.tokens
        if pending is self._gathered:
            self._gathered = None
        return tokens

    def _forget(self, header: Header) -> None:
        flights = self._flights.pop(header.producer_id, [])
        for flight in flights:
            if flight.epoch == header.producer_epoch:
                flight.remove(header)
        if left := [flight for flight in flights if flight.batches]:
            self._flights[header.producer_id] = left

    def tokens(self) -> list[Token]:
        """The tokens of all that waits."""
        everything = [*self._proposed.values(), *self._waiting]
        return [token for pending in everything for token in pending.tokens]

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """How much room what waits takes in the log, at most."""
        return sum([pending.entry_bytes for pending in self._waiting])

    @property
    def has_waiting_batches(self) -> bool:
        """Whether anything waits that is not of leases: what comes must not overtake it."""
        return bool(self._waiting) and not self.is_of_leases_only

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._waiting or self._proposed)

    @property
    def next_offset(self) -> Offset:
        """The offset that the next batch gets."""
        return self._next_offset


def catalog_changed() -> Overloaded:
    """The answer to a change that was made from another version."""
    return Overloaded("the catalog changed meanwhile: read it and try again")
