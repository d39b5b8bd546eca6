"""What one producer sends to one partition: numbering, and what to do after a failure. No I/O.

A producer numbers its messages to a partition without gaps, so the broker stores each batch once,
and in order. That holds as long as a batch that may have been stored is sent again under the same
number, and no number is skipped. So after a failure all batches on their way are judged together
(`PartitionSequencer.regroup`), in their order, by what is known of each:

    stored          done
    refused         certainly not stored by this attempt
    uncertain       some attempt went unanswered: it may be stored

- What may pass (`retriable`) is sent again, under the same number, until its deadline.
- A batch that is given up, and is not uncertain, leaves its number to the next: nothing behind it
  can have been stored, for that would have been a gap.
- A batch that is given up while uncertain makes the identity unusable: whatever comes next under
  it might be a gap, or pass for a repeat. So the producer goes on under a fresh identity. Other
  uncertain batches share its fate: under another identity they might be stored twice.
- Where the user said which number goes with which batch (`is_pinned`), no number is left to
  another batch: after a refusal nothing more is sent.
- A broker that asks for a number which it acknowledged long ago has forgotten the producer (it
  forgets those that were idle while thousands of others were not): a fresh identity too.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from quivermq.batches import Frame
from quivermq.errors import (
    BrokenInvariant,
    ConnectionFailed,
    InvalidRequest,
    OutOfSequence,
    QuiverError,
    StorageFailed,
    StorageFull,
    Timeout,
    UnknownError,
)

# The first time that a broker asks for an older number, it may be one that lags behind.
_FORGOTTEN_AFTER: Final = 2


class ProducerIdentity(NamedTuple):
    """Whom a broker takes batches to be from."""

    producer_id: int
    epoch: int = 0


class StoredAt(NamedTuple):
    """Where a batch is."""

    first_offset: int
    timestamp_ms: int


class InFlightBatch:
    """One batch on its way to a partition, up to its outcome."""

    __slots__ = (
        "_settled", "deadline", "error", "frame", "is_uncertain", "outcome", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        frame: Frame,
        deadline: float,
        settled: "Callable[[StoredAt | QuiverError], None] | None" = None,
    ) -> None:
        self.frame = frame
        self.deadline = deadline
        self.error: QuiverError | None = None
        """Why the last attempt failed."""
        self.is_uncertain = False
        self.ticket: object = None
        """Whoever sends it keeps here what belongs to the attempt under way."""
        self.outcome: StoredAt | QuiverError | None = None
        self._settled = settled

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.frame.header.count

    @property
    def sequence(self) -> int:
        """The number of its first message."""
        return self.frame.header.sequence

    def fail(self, error: QuiverError, *, was_sent: bool) -> None:
        """An attempt failed."""
        self.ticket = None
        self.error = error
        if was_sent and leaves_doubt(error):
            self.is_uncertain = True

    def settle(self, outcome: StoredAt | QuiverError) -> None:
        """It is stored, or given up."""
        self.outcome = outcome
        if self._settled is not None:
            self._settled(outcome)

    def number(self, identity: ProducerIdentity, sequence: int) -> None:
        """Write number and identity into the frame's header; the body stays."""
        header = self.frame.header
        wanted = (identity.producer_id, identity.epoch, sequence)
        if wanted != (header.producer_id, header.producer_epoch, header.sequence):
            renumbered = header._replace(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                sequence=sequence,
            )
            self.frame = Frame(renumbered, self.frame.body)


class PartitionSequencer:
    """The stream of one identity to one partition."""

    __slots__ = (
        "_head_refusals", "broken", "flying", "identity", "is_pinned", "is_replaceable",
        "next_sequence",
    )  # fmt: skip

    def __init__(
        self,
        identity: ProducerIdentity,
        *,
        next_sequence: int = 0,
        is_replaceable: bool = True,
        is_pinned: bool = False,
    ) -> None:
        self.identity: ProducerIdentity | None = identity
        """None: the last one became unusable; `adopt` another before sending."""
        self.next_sequence = next_sequence
        self.is_replaceable = is_replaceable
        """False: the user chose the identity, so nobody else may choose another."""
        self.is_pinned = is_pinned
        """The user chose the numbers too: what is sent again must have the number it had."""
        self.broken: QuiverError | None = None
        """Set when the user's identity became unusable: nothing can be sent any more."""
        self.flying: deque[InFlightBatch] = deque()
        """Launched and not settled, in the order of their numbers."""
        self._head_refusals = 0

    def launch(self, flight: InFlightBatch) -> None:
        """Give the batch in flight the next number; it is under way from here on."""
        if self.broken is not None:
            flight.settle(self.broken)
            return
        if self.identity is None:
            raise BrokenInvariant("a shipment was launched without an identity")
        flight.number(self.identity, self.next_sequence)
        self.next_sequence += flight.count
        self.flying.append(flight)

    def adopt(self, identity: ProducerIdentity) -> None:
        """Go on under another identity, with whatever is still under way."""
        self.identity = identity
        self.next_sequence = 0
        self._renumber(self.flying)

    def restart(self) -> None:
        """The topic was created again: in this one nothing is stored yet, under any number."""
        if self.is_pinned:
            self._break("the topic was deleted and created again meanwhile")
            return
        unsettled = deque(each for each in self.flying if each.outcome is None)
        for flight in unsettled:
            flight.is_uncertain = False
        self.next_sequence = 0
        self._renumber(unsettled)

    def regroup(self, now: float, last_word: QuiverError) -> None:
        """All attempts under way have ended: settle what is decided, number the rest.

        Afterwards `flying` holds what to send again, and `identity` is None if a fresh one is
        needed for that. `last_word` is for those whose time is over.
        """
        kept: list[InFlightBatch] = []
        hole: int | None = None
        has_doubt = False
        for flight in self.flying:
            error = flight.error
            if flight.outcome is not None:
                continue
            if error is None:
                raise BrokenInvariant("a shipment without an outcome is still under way")
            flight.is_uncertain = flight.is_uncertain and hole is None
            if error.retriable and now < flight.deadline:
                kept.append(flight)
            elif flight.is_uncertain:
                has_doubt = True
                flight.settle(_unknown(error))
            else:
                hole = flight.sequence if hole is None else hole
                flight.settle(last_word if error.retriable else error)
        self.flying = deque(kept)
        if has_doubt or (hole is None and self._is_forgotten()):
            self._discard_identity()
        elif hole is not None and self.is_pinned:
            self._break(f"the batch with number {hole} was refused")
        elif hole is not None:
            self._close_hole(hole)

    def _is_forgotten(self) -> bool:
        """The broker refuses the first of all, again and again, because of its number."""
        first = self.flying[0] if self.flying else None
        if first is None or first.is_uncertain or not isinstance(first.error, OutOfSequence):
            self._head_refusals = 0
            return False
        self._head_refusals += 1
        return self._head_refusals >= _FORGOTTEN_AFTER

    def _discard_identity(self) -> None:
        self._head_refusals = 0
        for flight in self.flying:
            if flight.is_uncertain and flight.error is not None:
                flight.settle(_unknown(flight.error))
        self.flying = deque(each for each in self.flying if each.outcome is None)
        if self.is_replaceable:
            self.identity = None
            return
        self._break(
            "nobody knows whether an earlier batch of it was stored. Go on with a higher epoch"
        )

    def _break(self, reason: str) -> None:
        """Nothing can be sent any more."""
        self.broken = InvalidRequest(f"{self.identity} cannot go on in this partition: {reason}")
        while self.flying:
            flight = self.flying.popleft()
            if flight.outcome is None:
                error = flight.error if flight.is_uncertain else None
                flight.settle(self.broken if error is None else _unknown(error))

    def _close_hole(self, hole: int) -> None:
        """What came behind the hole takes its number."""
        behind = deque(each for each in self.flying if each.sequence > hole)
        self.next_sequence = hole
        self._renumber(behind)

    def _renumber(self, flights: deque[InFlightBatch]) -> None:
        for flight in flights:
            if self.identity is None:
                raise BrokenInvariant("shipments cannot be numbered without an identity")
            flight.number(self.identity, self.next_sequence)
            self.next_sequence += flight.count


def leaves_doubt(error: QuiverError) -> bool:
    """After this answer, or for the lack of one, nobody knows whether the batch is stored."""
    if isinstance(error, StorageFull):
        return False
    return isinstance(error, Timeout | ConnectionFailed | StorageFailed | UnknownError)


def _unknown(error: QuiverError) -> QuiverError:
    if not error.retriable:
        return error
    return Timeout(
        "no answer in time: the messages may have been stored or not, and sending them again "
        f"may store them twice ({error})"
    )
