"""Numbers the batches of one producer to one partition, also after failures. No I/O.

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
    """The producer id and epoch under which brokers know a producer."""

    producer_id: int
    epoch: int = 0


class StoredAt(NamedTuple):
    """Where a batch is."""

    first_offset: int
    timestamp_ms: int


class InFlightBatch:
    """One batch on its way to a partition, up to its outcome."""

    __slots__ = (
        "_on_settled",
        "attempt",
        "deadline",
        "error",
        "frame",
        "is_uncertain",
        "outcome",
        "trace",
    )  # fmt: skip

    def __init__(
        self,
        frame: Frame,
        deadline: float,
        on_settled: "Callable[[StoredAt | QuiverError], None] | None" = None,
        trace: object = None,
    ) -> None:
        self.frame = frame
        self.deadline = deadline
        self.error: QuiverError | None = None
        """Why the last attempt failed."""
        self.is_uncertain = False
        self.attempt: object = None
        """The attempt under way; kept here by the sender of the batch."""
        self.outcome: StoredAt | QuiverError | None = None
        self._on_settled = on_settled
        self.trace = trace
        """The trace context that its requests carry; None: that of the caller."""

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
        self.attempt = None
        self.error = error
        if was_sent and leaves_doubt(error):
            self.is_uncertain = True

    def settle(self, outcome: StoredAt | QuiverError) -> None:
        """It is stored, or given up."""
        self.outcome = outcome
        if self._on_settled is not None:
            self._on_settled(outcome)

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
        "_head_refusals",
        "broken",
        "identity",
        "in_flight",
        "is_pinned",
        "is_replaceable",
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
        """False: the user chose the identity, so it must not be replaced."""
        self.is_pinned = is_pinned
        """The user chose the numbers too: what is sent again must have the number it had."""
        self.broken: QuiverError | None = None
        """Set when the user's identity became unusable: nothing can be sent any more."""
        self.in_flight: deque[InFlightBatch] = deque()
        """Launched and not settled, in the order of their numbers."""
        self._head_refusals = 0

    def launch(self, batch: InFlightBatch) -> None:
        """Give the batch in flight the next number; it is under way from here on."""
        if self.broken is not None:
            batch.settle(self.broken)
            return
        if self.identity is None:
            raise BrokenInvariant("a batch was launched without an identity")
        batch.number(self.identity, self.next_sequence)
        self.next_sequence += batch.count
        self.in_flight.append(batch)

    def adopt(self, identity: ProducerIdentity) -> None:
        """Go on under another identity, with whatever is still under way."""
        self.identity = identity
        self.next_sequence = 0
        self._renumber(self.in_flight)

    def restart(self) -> None:
        """The topic was created again: in this one nothing is stored yet, under any number."""
        if self.is_pinned:
            self._break("the topic was deleted and created again meanwhile")
            return
        unsettled = deque(each for each in self.in_flight if each.outcome is None)
        for batch in unsettled:
            batch.is_uncertain = False
        self.next_sequence = 0
        self._renumber(unsettled)

    def regroup(self, now: float, final_error: QuiverError) -> None:
        """All attempts under way have ended: settle what is decided, number the rest.

        Afterwards `in_flight` holds what to send again, and `identity` is None if a fresh one is
        needed for that. `final_error` is for those whose time is over.
        """
        kept: list[InFlightBatch] = []
        hole: int | None = None
        has_doubt = False
        for batch in self.in_flight:
            error = batch.error
            if batch.outcome is not None:
                continue
            if error is None:
                raise BrokenInvariant("a batch without an outcome is still under way")
            batch.is_uncertain = batch.is_uncertain and hole is None
            if error.retriable and now < batch.deadline:
                kept.append(batch)
            elif batch.is_uncertain:
                has_doubt = True
                batch.settle(_unknown(error))
            else:
                hole = batch.sequence if hole is None else hole
                batch.settle(final_error if error.retriable else error)
        self.in_flight = deque(kept)
        if has_doubt or (hole is None and self._is_forgotten()):
            self._discard_identity()
        elif hole is not None and self.is_pinned:
            self._break(f"the batch with number {hole} was refused")
        elif hole is not None:
            self._close_hole(hole)

    def _is_forgotten(self) -> bool:
        """The broker refuses the first of all, again and again, because of its number."""
        first = self.in_flight[0] if self.in_flight else None
        if first is None or first.is_uncertain or not isinstance(first.error, OutOfSequence):
            self._head_refusals = 0
            return False
        self._head_refusals += 1
        return self._head_refusals >= _FORGOTTEN_AFTER

    def _discard_identity(self) -> None:
        self._head_refusals = 0
        for batch in self.in_flight:
            if batch.is_uncertain and batch.error is not None:
                batch.settle(_unknown(batch.error))
        self.in_flight = deque(each for each in self.in_flight if each.outcome is None)
        if self.is_replaceable:
            self.identity = None
            return
        self._break("it is unknown whether an earlier batch was stored. Go on with a higher epoch")

    def _break(self, reason: str) -> None:
        """Nothing can be sent any more."""
        self.broken = InvalidRequest(f"{self.identity} cannot go on in this partition: {reason}")
        while self.in_flight:
            batch = self.in_flight.popleft()
            if batch.outcome is None:
                error = batch.error if batch.is_uncertain else None
                batch.settle(self.broken if error is None else _unknown(error))

    def _close_hole(self, hole: int) -> None:
        """The batches behind the hole take its number."""
        behind = deque(each for each in self.in_flight if each.sequence > hole)
        self.next_sequence = hole
        self._renumber(behind)

    def _renumber(self, batches: deque[InFlightBatch]) -> None:
        for batch in batches:
            if self.identity is None:
                raise BrokenInvariant("batches cannot be numbered without an identity")
            batch.number(self.identity, self.next_sequence)
            self.next_sequence += batch.count


def leaves_doubt(error: QuiverError) -> bool:
    """After this answer, or for the lack of one, it is unknown whether the batch is stored."""
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
