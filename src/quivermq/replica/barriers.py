"""Linearizable reads that wait: for a quorum's word, then for the state machine to catch up."""

from quivermq.raft import ReadState
from quivermq.replica.effects import Token

_TOKEN_BYTES = 8


class Barriers:
    """Reads in both stages of waiting, each with the ticks that it has left."""

    def __init__(self, read_ticks: int) -> None:
        self._read_ticks = read_ticks
        self._ticks_left: dict[Token, int] = {}
        self._index: dict[Token, int] = {}

    def __len__(self) -> int:
        return len(self._ticks_left)

    def open(self, token: Token) -> bytes:
        """Begin to wait; returns the context to ask the core with."""
        self._ticks_left[token] = self._read_ticks
        return token.to_bytes(_TOKEN_BYTES, "little")

    def drop(self, token: Token) -> None:
        self._ticks_left.pop(token, None)
        self._index.pop(token, None)

    def confirmed(self, state: ReadState) -> None:
        """A quorum confirmed: the read sees everything once `state.index` is applied."""
        token = int.from_bytes(state.context, "little")
        if token in self._ticks_left:
            self._index[token] = state.index

    def passed(self, applied_index: int) -> list[Token]:
        """The reads that may be answered; they are forgotten here."""
        ready = [token for token, index in self._index.items() if index <= applied_index]
        for token in ready:
            self.drop(token)
        return ready

    def tick(self) -> list[Token]:
        """The reads that waited for too long; they are forgotten here."""
        for token in self._ticks_left:
            self._ticks_left[token] -= 1
        late = [token for token, left in self._ticks_left.items() if left <= 0]
        for token in late:
            self.drop(token)
        return late

    def tokens(self) -> list[Token]:
        return list(self._ticks_left)
