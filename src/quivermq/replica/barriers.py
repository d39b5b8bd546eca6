"""Linearizable reads that wait: for a quorum to confirm, then for the state machine to catch up."""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from quivermq.raft import Dice, ReadState
from quivermq.replica.effects import Token

_CONTEXT: Final = Struct("<QQ")
_LIVES: Final = 1 << 64


@dataclass(slots=True)
class WaitingRead:
    """A read, and the ticks that it has left."""

    token: Token
    ticks_left: int
    index: int | None = None
    """Must be applied before it is answered; None until a quorum has confirmed it."""


class Barriers:
    """Reads in both stages of waiting, by the context that the core knows them by.

    A context is used once, in all lives of the replica: a late word on a read before a restart says
    nothing about one after it, though both may have the same token.
    """

    def __init__(self, read_ticks: int, dice: Dice) -> None:
        self._read_ticks = read_ticks
        self._life = dice.randrange(_LIVES)
        self._opened = 0
        self._waiting: dict[bytes, WaitingRead] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, token: Token) -> bytes:
        """Begin to wait; returns the context to ask the core with."""
        self._opened += 1
        context = _CONTEXT.pack(self._life, self._opened)
        self._waiting[context] = WaitingRead(token, self._read_ticks)
        return context

    def drop(self, context: bytes) -> None:
        self._waiting.pop(context, None)

    def confirm(self, state: ReadState) -> None:
        """A quorum confirmed: the read sees everything once `state.index` is applied."""
        read = self._waiting.get(state.context)
        if read is not None:
            read.index = state.index

    def take_unconfirmed(self) -> list[Token]:
        """The reads that no quorum has confirmed yet; they are forgotten here."""
        return self._take([c for c, read in self._waiting.items() if read.index is None])

    def take_passed(self, applied_index: int) -> list[Token]:
        """The reads that may be answered; they are forgotten here."""
        if not self._waiting:
            return []
        return self._take(
            [
                context
                for context, read in self._waiting.items()
                if read.index is not None and read.index <= applied_index
            ]
        )

    def tick(self) -> list[Token]:
        """The reads that waited for too long; they are forgotten here."""
        for read in self._waiting.values():
            read.ticks_left -= 1
        return self._take(
            [context for context, read in self._waiting.items() if read.ticks_left <= 0]
        )

    def _take(self, contexts: list[bytes]) -> list[Token]:
        return [self._waiting.pop(context).token for context in contexts]
