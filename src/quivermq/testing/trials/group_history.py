"""Records what the consumers of a group received and settled, and checks the guarantees of groups.

It knows messages by partition and offset, leases by their tokens, and the order of events by the
steady clock that all processes of a machine share. Each check raises `Violation` with the number of
the guarantee (`docs/guarantees.md`) in front.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from quivermq.client import GroupInfo
from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition

Spot = tuple[TopicPartition, int]
"""A message: its partition and its offset."""


class SettleAction(StrEnum):
    """The ways to settle a message."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    RELEASE = "release"
    EXTEND = "extend"


class Fate(StrEnum):
    """The outcome of settling, as the consumer knows it."""

    DONE = "done"
    LOST = "lost"
    """`LeaseLost`: another consumer may have the message."""
    UNKNOWN = "unknown"
    """No answer, or one that was not about this message alone."""


class Delivered(NamedTuple):
    """A consumer received a message."""

    place: TopicPartition
    offset: int
    value: bytes
    token: int
    delivery: int
    consumer: str
    began_ns: int
    """When its poll was asked for, by the steady clock."""
    at_ns: int
    wall_ms: float

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of {self.place} (delivery {self.delivery}, lease {self.token}, "
            f"{self.consumer})"
        )


class SettleCall(NamedTuple):
    """A consumer settled a message."""

    act: SettleAction
    place: TopicPartition
    offset: int
    token: int
    consumer: str
    began_ns: int
    began_wall_ms: float
    ended_ns: int
    """0: the call has not returned."""
    fate: Fate
    delay_s: float = 0.0


class Letter(NamedTuple):
    """A dead letter, as it was read."""

    topic: str
    partition: int
    offset: int
    """These three: where it came from."""
    group: str
    reason: str
    deliveries: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    """Its own."""
    died: str


class Original(NamedTuple):
    """A message as it is in its partition."""

    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]


class GroupHistory:
    """The deliveries and settlements of one group, from any number of threads and journals."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._lock = threading.Lock()
        self._delivered: dict[Spot, list[Delivered]] = defaultdict(list)
        self._said: dict[Spot, list[SettleCall]] = defaultdict(list)
        self._not_before_ms: dict[bytes, float] = {}
        self._left_ns: dict[str, int] = {}
        self._begun: dict[str, Sequence[SettleCall]] = {}
        self.acked_count = 0
        """Acknowledgements that were answered."""

    # Recording.

    def record_deliveries(self, found: Iterable[Delivered]) -> None:
        """A consumer received these."""
        with self._lock:
            for one in found:
                self._delivered[one.place, one.offset].append(one)

    def record_calls(self, said: Iterable[SettleCall]) -> None:
        """A consumer settled these."""
        with self._lock:
            for one in said:
                self._said[one.place, one.offset].append(one)
                self.acked_count += one.act == SettleAction.ACK and one.fate == Fate.DONE

    def begin_calls(self, consumer: str, said: Sequence[SettleCall]) -> None:
        """A consumer settles these. If it is killed in it, they may be settled, or not."""
        with self._lock:
            self._begun[consumer] = said

    def end_calls(self, consumer: str, said: Sequence[SettleCall]) -> None:
        """A consumer has settled what it began to settle."""
        with self._lock:
            del self._begun[consumer]
        self.record_calls(said)

    def record_leave(self, consumer: str, at_ns: int) -> None:
        """A consumer is about to end, and to release its leases."""
        with self._lock:
            self._left_ns.setdefault(consumer, at_ns)

    def record_delay(self, values: Iterable[bytes], not_before_ms: float) -> None:
        """These are sent, and not to be delivered before a time."""
        with self._lock:
            self._not_before_ms.update(dict.fromkeys(values, not_before_ms))

    # Looking up.

    def deliveries(self, place: TopicPartition, offset: int) -> list[Delivered]:
        """All deliveries of a message, in order."""
        with self._lock:
            return sorted(self._delivered[place, offset], key=lambda one: one.at_ns)

    def offsets(self, act: SettleAction, fate: Fate = Fate.DONE) -> set[Spot]:
        """Messages that were settled in this way, with this outcome."""
        with self._lock:
            return {
                spot
                for spot, said in self._said.items()
                if any(one.act == act and one.fate == fate for one in said)
            }

    @property
    def delivered(self) -> set[Spot]:
        """Messages that any consumer received."""
        with self._lock:
            return {spot for spot, found in self._delivered.items() if found}

    # Checking.

    def close(self) -> None:
        """No consumer works any more: calls that have not ended are of those that were killed."""
        begun, self._begun = self._begun, {}
        for said in begun.values():
            self.record_calls(said)

    def check(
        self, contents: Mapping[TopicPartition, Mapping[int, Original]], letters: Sequence[Letter]
    ) -> None:
        """Check the history against the partitions and the dead letters of this group. For a group
        without unfinished messages, `check_drained` checks more."""
        self.close()
        with self._lock:
            for spot, found in self._delivered.items():
                said = self._said.get(spot, [])
                self._check_sent(spot, found, contents)
                self._check_due(found)
                self._check_tokens(spot, found, said)
                self._check_final(found, said)
                self._check_pauses(found, said)
        self._check_letters(contents, letters)

    def check_drained(
        self,
        contents: Mapping[TopicPartition, Mapping[int, Original]],
        letters: Sequence[Letter],
        *,
        kept_from: int = 0,
    ) -> None:
        """I5: each message was acknowledged or is a dead letter, and not both. The group may have
        lost messages below `kept_from`."""
        self.check(contents, letters)
        dead = {
            (TopicPartition(letter.topic, letter.partition), letter.offset) for letter in letters
        }
        missing = []
        for place, messages in contents.items():
            for offset in messages:
                acks = [a for a in self._said.get((place, offset), []) if a.act == SettleAction.ACK]
                is_acked = any(a.fate == Fate.DONE for a in acks)
                may_be = is_acked or any(a.fate == Fate.UNKNOWN for a in acks)
                if (place, offset) in dead:
                    if is_acked:
                        raise Violation(f"I5: {place}@{offset} is acknowledged and a dead letter")
                elif not may_be and offset >= kept_from:
                    missing.append(f"{place}@{offset}")
        if missing:
            raise Violation(
                f"I5: {len(missing)} messages were neither acknowledged nor dead-lettered: "
                f"{missing[:10]}"
            )

    def check_exclusive(self, visibility_s: float) -> None:
        """I4: no consumer received a message while another one had it. Holds only while no leader
        is lost, because a leader that dies takes leases along."""
        returns = {SettleAction.NACK, SettleAction.RELEASE}
        with self._lock:
            for spot, found in self._delivered.items():
                said = self._said.get(spot, [])
                for one, other in pairwise(sorted(found, key=lambda each: each.at_ns)):
                    is_returned = self._left_ns.get(one.consumer, other.at_ns) < other.at_ns or any(
                        each.act in returns
                        and each.token == one.token
                        and each.began_ns < other.at_ns
                        for each in said
                    )
                    has_expired = (
                        other.delivery > one.delivery
                        and other.at_ns - one.began_ns >= visibility_s * 1e9
                    )
                    if not is_returned and not has_expired:
                        raise Violation(f"I4: {other} was given out while it was leased: {one}")

    def check_figures(
        self,
        info: GroupInfo,
        contents: Mapping[TopicPartition, Mapping[int, Original]],
        letters: Sequence[Letter],
    ) -> None:
        """I5: the numbers that brokers give for the group add up, and fit to the history."""
        for part in info.partitions:
            place = TopicPartition(info.topic, part.partition)
            states = (part.lag, part.in_flight, part.delayed, part.done, part.dead, part.lost)
            wanted = part.end_offset - part.start_offset
            if sum(states) != wanted or min(states) < 0:
                raise Violation(
                    f"I5: group {self.group} of {place} has {wanted} messages; waiting, in flight, "
                    f"delayed, done, dead and lost {states} are {sum(states)}"
                )
            if contents.get(place) and max(contents[place]) + 1 != part.end_offset:
                raise Violation(
                    f"I5: {place} ends at {max(contents[place]) + 1}, group {self.group} says "
                    f"{part.end_offset}"
                )
            acks = [
                {a.fate for a in said if a.act == SettleAction.ACK}
                for (where, _), said in self._said.items()
                if where == place
            ]
            least = sum(Fate.DONE in fates for fates in acks)
            most = sum(bool(fates & {Fate.DONE, Fate.UNKNOWN}) for fates in acks)
            if not least <= part.done <= most:
                raise Violation(
                    f"I5: group {self.group} of {place} is done with {part.done}; {least} were "
                    f"acknowledged, at most {most}"
                )
            dead = sum(letter.partition == part.partition for letter in letters)
            if part.dead != dead:
                raise Violation(
                    f"I5: group {self.group} of {place} counts {part.dead} dead, there are "
                    f"{dead} letters"
                )

    def _check_sent(
        self,
        spot: Spot,
        found: list[Delivered],
        contents: Mapping[TopicPartition, Mapping[int, Original]],
    ) -> None:
        place, offset = spot
        original = contents.get(place, {}).get(offset)
        for one in found:
            if original is None and contents.get(place) and offset < min(contents[place]):
                continue  # retention dropped it since
            if original is None or one.value != original.value:
                raise Violation(
                    f"I2: {one} was {one.value!r}, the partition has "
                    f"{original and original.value!r} there"
                )

    def _check_due(self, found: list[Delivered]) -> None:
        for one in found:
            due_ms = self._not_before_ms.get(one.value, 0.0)
            if one.wall_ms < due_ms:
                raise Violation(f"I8: {one} came {due_ms - one.wall_ms:.0f} ms early")

    def _check_tokens(self, spot: Spot, found: list[Delivered], said: list[SettleCall]) -> None:
        """A token delivers a message in one poll, and one token finishes it."""
        tokens = [one.token for one in found if one.token]
        if len(tokens) != len(set(tokens)):
            raise Violation(f"I4: a lease brought the same message twice: {list(map(str, found))}")
        winners = {
            one.token
            for one in said
            if one.act in {SettleAction.ACK, SettleAction.REJECT} and one.fate == Fate.DONE
        }
        if len(winners) > 1:
            raise Violation(
                f"I4: {spot[0]}@{spot[1]} was ended by {len(winners)} leases: {sorted(winners)}\n"
                + "\n".join(map(repr, [*found, *said]))
            )

    def _check_final(self, found: list[Delivered], said: list[SettleCall]) -> None:
        """A poll that begins after an ack or a reject has returned does not get the message."""
        ended = [
            one
            for one in said
            if one.act in {SettleAction.ACK, SettleAction.REJECT} and one.fate == Fate.DONE
        ]
        if not ended:
            return
        first = min(ended, key=lambda one: one.ended_ns)
        for one in found:
            if one.began_ns > first.ended_ns:
                late_ms = (one.began_ns - first.ended_ns) / 1e6
                raise Violation(
                    f"I5: {one} was given out by a poll that began {late_ms:.1f} ms after the "
                    f"{first.act} of {first.consumer} (lease {first.token}) had returned; "
                    f"all of it: {list(map(str, found))} {said}"
                )

    def _check_pauses(self, found: list[Delivered], said: list[SettleCall]) -> None:
        """A message that was nacked with a delay is not delivered before it is over."""
        for nack in said:
            if nack.act != SettleAction.NACK or nack.fate != Fate.DONE or not nack.delay_s:
                continue
            due_ms = nack.began_wall_ms + nack.delay_s * 1000
            for one in found:
                if one.began_ns > nack.ended_ns and one.wall_ms < due_ms:
                    raise Violation(f"I8: {one} came {due_ms - one.wall_ms:.0f} ms too early")

    def _check_letters(
        self, contents: Mapping[TopicPartition, Mapping[int, Original]], letters: Sequence[Letter]
    ) -> None:
        seen: dict[Spot, Letter] = {}
        for letter in letters:
            spot = TopicPartition(letter.topic, letter.partition), letter.offset
            if spot in seen:
                raise Violation(f"I5: {spot[0]}@{spot[1]} is among the dead letters twice")
            seen[spot] = letter
            original = contents.get(spot[0], {}).get(letter.offset)
            if original != Original(letter.key, letter.value, letter.headers):
                raise Violation(f"I2: the dead letter {letter} was {original}")
            if letter.group != self.group or not letter.reason or not letter.died:
                raise Violation(f"I5: the dead letter {letter} lacks its reason, group or time")
            counts = [one.delivery for one in self._delivered.get(spot, [])]
            if counts and letter.deliveries < max(counts):
                raise Violation(f"I5: {letter} died after delivery {max(counts)}")
        for place, offset in self.offsets(SettleAction.REJECT) - set(seen):
            raise Violation(f"I5: {place}@{offset} was rejected and is no dead letter")
