"""Taking in what producers send: checked, recognised if it is a repeat, stamped, remembered.

Everything that can be refused is refused here, before it is proposed. A leader knows more than the
applied state: batches that it proposed and that wait to be committed. A repeat of one of those
joins it instead of being proposed again.
"""

from dataclasses import dataclass, field

from quivermq.batches import Frame, Header, Index, Kind, Offset, decode_batch
from quivermq.errors import InvalidRequest, Overloaded
from quivermq.queue import Partition, check_sequence
from quivermq.replica.effects import Produced, Token
from quivermq.replica.settings import ReplicaSettings


@dataclass(slots=True)
class Pending:
    """A batch that was proposed, and who waits for it."""

    header: Header
    tokens: list[Token]


@dataclass(slots=True)
class Flight:
    """What a producer has in flight: batches proposed here and not yet applied."""

    epoch: int
    next_sequence: int
    batches: dict[int, Pending] = field(default_factory=dict)


class Intake:
    """The proposals of one leadership. Thrown away with it."""

    def __init__(self, partition: Partition, settings: ReplicaSettings) -> None:
        self._partition = partition
        self._settings = settings
        # Behind the last proposed message: what the next one is stamped with.
        self._next_offset = partition.next_offset
        self._timestamp_ms = partition.timestamp_ms
        self._pending: dict[Index, Pending] = {}
        self._flights: dict[int, Flight] = {}

    def recognise(self, token: Token, frame: Frame) -> Produced | Pending | None:
        """Check a batch. None: propose it. `Pending`: the token waits with an earlier one.

        Raises the refusal, if there is one.
        """
        header = frame.header
        if header.kind != Kind.DATA:
            raise InvalidRequest("only batches of messages can be produced")
        if header.producer_id and not self._comes_next(header):
            return self._repeat(token, header)
        if len(self._pending) >= self._settings.proposals_max:
            raise Overloaded(f"{len(self._pending)} batches wait to be committed; try again")
        # A body that is not what its header says would be a riddle to every consumer.
        decode_batch(frame, self._settings.limits)
        return None

    def _comes_next(self, header: Header) -> bool:
        producers = self._partition.producers
        flight = self._flights.get(header.producer_id)
        if flight is not None:
            return check_sequence(header, flight.epoch, flight.next_sequence)
        fresh = check_sequence(header, *producers.position(header.producer_id))
        known = len(producers) + len(self._flights)
        is_full = known >= self._settings.producers_max
        if fresh and is_full and not producers.knows(header.producer_id):
            raise Overloaded(f"{known} producers are remembered; no more are taken")
        return fresh

    def _repeat(self, token: Token, header: Header) -> Produced | Pending:
        flight = self._flights.get(header.producer_id)
        pending = flight.batches.get(header.sequence) if flight else None
        if pending is not None and pending.header.count == header.count:
            pending.tokens.append(token)
            return pending
        stored = self._partition.producers.repeated(header)
        return Produced(stored.base_offset, stored.messages, stored.timestamp_ms, is_repeat=True)

    def stamped(self, frame: Frame, term: int, index: Index, now_ms: int) -> Frame:
        """The frame as it goes into the log. Time never goes back, whatever the clock does."""
        return frame.stamped(
            term=term,
            index=index,
            base_offset=self._next_offset,
            timestamp_ms=max(now_ms, self._timestamp_ms),
        )

    def proposed(self, token: Token, header: Header) -> None:
        """The stamped batch is on its way."""
        pending = Pending(header, [token])
        self._pending[header.index] = pending
        self._next_offset = header.next_offset
        self._timestamp_ms = header.timestamp_ms
        if header.producer_id:
            flight = self._flights.get(header.producer_id)
            if flight is None or flight.epoch != header.producer_epoch:
                flight = self._flights[header.producer_id] = Flight(header.producer_epoch, 0)
            flight.next_sequence = header.sequence + header.count
            flight.batches[header.sequence] = pending

    def applied(self, header: Header) -> Pending | None:
        """An entry is applied: who waited for it."""
        pending = self._pending.pop(header.index, None)
        if pending is None or not header.producer_id:
            return pending
        flight = self._flights.get(header.producer_id)
        if flight is not None and flight.epoch == header.producer_epoch:
            flight.batches.pop(header.sequence, None)
            if not flight.batches:
                del self._flights[header.producer_id]
        return pending

    def tokens(self) -> list[Token]:
        """Everybody who waits."""
        return [token for pending in self._pending.values() for token in pending.tokens]

    @property
    def next_offset(self) -> Offset:
        """The offset that the next batch gets."""
        return self._next_offset
