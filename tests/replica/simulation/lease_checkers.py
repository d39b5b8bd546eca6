"""Checkers of shared groups, one class for each guarantee; see `checkers`.

They see the leases and confirmations of leaders, and the requests of consumers. A lease that a
leader granted before it was deposed may be unknown to the next one: only what a leader confirmed is
guaranteed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from quivermq.batches import Frame
from quivermq.queue import Piece
from quivermq.testing import Violation
from tests.replica.simulation.checkers import is_data

GroupOffset = tuple[str, int]
"""A group, and the offset of a message."""


def offsets_of(parts: Iterable[Sequence[int]]) -> list[int]:
    """All offsets of pieces or intervals."""
    return [offset for part in parts for offset in range(part[0], part[1])]


@dataclass
class OneWinner:
    """I4: a token has one holder; a message is finished under one token, and not delivered to a
    poll that begins after that was confirmed."""

    holders: dict[GroupOffset, int] = field(default_factory=dict)
    """By group and token."""
    winners: dict[GroupOffset, int] = field(default_factory=dict)
    """By message, the token under which it was finished; 0 if it was acknowledged in advance."""
    finished_us: dict[GroupOffset, int] = field(default_factory=dict)

    def grant(
        self, group: str, consumer: int, lease: int, pieces: Sequence[Piece], asked_us: int
    ) -> None:
        """A leader gives messages to a consumer that asked at `asked_us`."""
        if lease and self.holders.setdefault((group, lease), consumer) != consumer:
            raise Violation(f"I4: token {lease} of {group} goes to {consumer} and another")
        given = offsets_of(pieces)
        if len(set(given)) != len(given):
            raise Violation(f"I4: a lease of {group} holds a message twice: {pieces}")
        for offset in given:
            finished_us = self.finished_us.get((group, offset))
            if finished_us is not None and finished_us < asked_us:
                raise Violation(
                    f"I4: message {offset} of {group} is given out again: it was finished under "
                    f"token {self.winners[group, offset]} {asked_us - finished_us} us before "
                    "the poll began"
                )

    def finish(self, group: str, lease: int, offsets: Iterable[int], now_us: int) -> None:
        """A leader confirms that messages are finished under a token."""
        for offset in offsets:
            winner = self.winners.setdefault((group, offset), lease)
            if winner != lease or (not lease and (group, offset) in self.finished_us):
                raise Violation(
                    f"I4: message {offset} of {group} is finished under {winner} and {lease}"
                )
            self.finished_us.setdefault((group, offset), now_us)


@dataclass
class CountedFailures:
    """A message has not failed more often than it was given out before."""

    given: dict[GroupOffset, int] = field(default_factory=dict)

    def grant(self, group: str, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            for offset in range(piece.start, piece.end):
                before = self.given.get((group, offset), 0)
                if piece.failures > before:
                    raise Violation(
                        f"message {offset} of {group} failed {piece.failures} times, and was given "
                        f"out {before} times"
                    )
                self.given[group, offset] = before + 1


@dataclass
class NeverEarly:
    """I8: a delayed message is due by the clock of the leader that delivers it first."""

    first_ms: dict[GroupOffset, int] = field(default_factory=dict)
    """The leader's clock at the first delivery of a message."""

    def grant(self, group: str, pieces: Sequence[Piece], clock_ms: int) -> None:
        for offset in offsets_of(pieces):
            self.first_ms.setdefault((group, offset), clock_ms)

    def check(self, frames: Sequence[Frame]) -> None:
        due_ms = {
            offset: frame.header.not_before_ms
            for frame in filter(is_data, frames)
            for offset in range(frame.header.base_offset, frame.header.next_offset)
        }
        for (group, offset), given_ms in self.first_ms.items():
            early_ms = due_ms[offset] - given_ms
            if early_ms > 0:
                raise Violation(f"I8: {group} gets message {offset} {early_ms} ms too early")


@dataclass
class EveryMessage:
    """I5: a message that a group is done with was finished by a consumer, or is a dead letter."""

    tried: set[GroupOffset] = field(default_factory=set)
    """Messages that a consumer tried to finish: it may have happened without an answer."""

    def check(
        self, group: str, end: int, letters: Sequence[int], winners: dict[GroupOffset, int]
    ) -> None:
        """A group is done with everything below `end`."""
        dead = set(letters)
        for offset in range(end):
            is_finished = (group, offset) in winners
            if is_finished and offset in dead:
                raise Violation(f"I5: message {offset} of {group} is finished, and a dead letter")
            if not (is_finished or offset in dead or (group, offset) in self.tried):
                raise Violation(f"I5: {group} is done with message {offset}, no consumer is")
