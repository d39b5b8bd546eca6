"""Limits of delayed messages, and of the index of priority index."""

from random import Random
from typing import Final

import pytest

from quivermq.batches import Frame, encode_batch
from quivermq.errors import Overloaded
from tests.limits.leasing import PORTION
from tests.limits.stage import HOUR_MS, Scenario, delayed, origin

ONE: Final = encode_batch([b"."])


def later(due_ms: int) -> Frame:
    return origin(ONE, not_before_ms=due_ms)


class Delayed(Scenario):
    """As many delayed batches as a partition may have, due in any order."""

    name = "delayed"
    limits = ("queue/priority_index.py:DELAYED_MAX",)

    def fill(self) -> None:
        stage = self.stage
        self.most = stage.limit("queue.priority_index", "DELAYED_MAX")
        self.dice = Random(5)
        due_ms = stage.group.now_ms + HOUR_MS
        stage.produce(later(due_ms + self.dice.randrange(24 * HOUR_MS)) for _ in range(self.most))

    def is_full(self) -> None:
        stage = self.stage
        (refused,) = stage.attempt([later(stage.group.now_ms + HOUR_MS)])
        assert isinstance(refused, Overloaded)
        assert "delayed batches" in str(refused)
        now_ms = stage.group.now_ms
        stage.produce([ONE])
        assert stage.poll(1000, name="now", what="first poll") is not None, "what is not delayed"
        stage.ring()
        assert (
            stage.with_leases("total", lambda lease_manager: lease_manager.delayed_total(now_ms))
            == self.most
        )
        assert len(
            stage.with_leases(
                "list", lambda lease_manager: lease_manager.delayed(now_ms, 0, 10_000)
            )
        ) == min(self.most, 10_000)

    def go_on(self) -> None:
        stage = self.stage
        stage.group.now_ms += 13 * HOUR_MS
        got = 0
        while (leased := stage.poll(1000, what="poll of what is due")) is not None and got < 20_000:
            assert stage.acknowledge(leased) == []
            got += len(leased.pieces)
            stage.ring(3)
        assert got >= min(self.most // 4, 20_000)
        stage.with_leases(
            "trim", lambda lease_manager: lease_manager.working_copy.trim(self.most // 2)
        )
        stage.ring(10)


class Due(Scenario):
    """A group has taken over as many delayed messages that are due as it may."""

    name = "due"
    limits = ("queue/lease_manager.py:DUE_MAX",)

    def fill(self) -> None:
        stage = self.stage
        self.most = stage.limit("queue.lease_manager", "DUE_MAX", 50)
        self.total = 2 * self.most
        stage.produce(later(stage.group.now_ms + 1 + at % 977) for at in range(self.total))
        # Sought by a group that shares nothing fresh yet.
        stage.poll(1)
        stage.group.now_ms += HOUR_MS
        for _ in range(2 * self.most // 2_000 + 2):
            stage.with_leases(
                "look",
                lambda lease_manager: lease_manager.ready("g", stage.end, stage.group.now_ms, 1),
            )

    def is_full(self) -> None:
        stage = self.stage
        waiting = stage.leader.replica.groups.by_name["g"].waiting
        assert waiting.delayed_pieces == self.most
        stage.with_leases(
            "look", lambda lease_manager: lease_manager.ready("g", stage.end, stage.group.now_ms, 1)
        )
        stage.ring(10)
        waiting = stage.leader.replica.groups.by_name["g"].waiting
        assert waiting.delayed_pieces == self.most

    def go_on(self) -> None:
        stage = self.stage
        seen: set[int] = set()
        for _ in range(self.total):
            leased = stage.poll(min(1000, self.most))
            if leased is None:
                break
            for piece in leased.pieces:
                offsets = set(range(piece.start, piece.end))
                assert not seen & offsets
                seen |= offsets
            assert stage.acknowledge(leased) == []
        assert seen >= set(range(self.total))


class Cancelled(Scenario):
    """As many delayed messages were cancelled one by one as may be."""

    name = "cancelled"
    limits = ("queue/lease_manager.py:CANCELLED_MAX",)
    batch = 100

    def fill(self) -> None:
        stage = self.stage
        self.due = stage.limit("queue.lease_manager", "DUE_MAX", 50)
        self.most = stage.limit("queue.lease_manager", "CANCELLED_MAX", 500)
        frame = delayed(stage.group.now_ms + HOUR_MS, *[b"."] * self.batch)
        self.total = self.batch * (2 * self.most // self.batch + 1)
        stage.produce([frame] * (self.total // self.batch))
        parts = [(2 * at, 2 * at + 1) for at in range(self.most)]
        for at in range(0, self.most, PORTION):
            self.cancel(parts[at : at + PORTION])

    def cancel(self, parts: list[tuple[int, int]]) -> int:
        now_ms = self.stage.group.now_ms
        return self.stage.with_leases(
            "cancel", lambda lease_manager: lease_manager.cancel(parts, now_ms)
        )

    def is_full(self) -> None:
        stage, now_ms = self.stage, self.stage.group.now_ms
        with pytest.raises(Overloaded, match="one by one"):
            self.cancel([(2 * self.most, 2 * self.most + 1)])
        assert self.cancel([(0, 1)]) == 0, "it is cancelled already"
        stage.poll(what="first poll")
        stage.ring()
        total = stage.with_leases(
            "total", lambda lease_manager: lease_manager.delayed_total(now_ms)
        )
        assert total == self.total - self.most
        stage.with_leases("list", lambda lease_manager: lease_manager.delayed(now_ms, 0, 10_000))

    def go_on(self) -> None:
        stage = self.stage
        stage.group.now_ms += HOUR_MS
        seen: list[int] = []
        while leased := stage.poll(1000, what="poll of what is due"):
            known = stage.leader.replica.groups.by_name["g"]
            taken_over = known.waiting.delayed_pieces + known.leased_pieces
            assert taken_over <= self.due + self.batch + 10, "batches in pieces are counted so"
            seen += [at for piece in leased.pieces for at in range(piece.start, piece.end)]
            assert stage.acknowledge(leased) == []
            stage.ring(3)
        wanted = {at for at in range(self.total) if at % 2 or at >= 2 * self.most}
        assert wanted <= set(seen)
        assert len(seen) == len(set(seen))
        assert not {at for at in seen if at < self.total} - wanted


class CancelledOfBatch(Scenario):
    """As many messages of one delayed batch were cancelled one by one as may be."""

    name = "one-batch"
    limits = ("queue/lease_manager.py:CANCELLED_OF_BATCH_MAX",)

    def fill(self) -> None:
        stage = self.stage
        self.most = stage.limit("queue.lease_manager", "CANCELLED_OF_BATCH_MAX", 50)
        stage.produce([delayed(stage.group.now_ms + HOUR_MS, *[b"."] * (2 * self.most + 10))] * 2)
        parts = [(2 * at, 2 * at + 1) for at in range(self.most)]
        for at in range(0, self.most, PORTION):
            self.cancel(parts[at : at + PORTION])

    def cancel(self, parts: list[tuple[int, int]]) -> int:
        now_ms = self.stage.group.now_ms
        return self.stage.with_leases(
            "cancel", lambda lease_manager: lease_manager.cancel(parts, now_ms)
        )

    def is_full(self) -> None:
        with pytest.raises(Overloaded, match="one by one"):
            self.cancel([(2 * self.most, 2 * self.most + 1)])
        self.stage.poll(what="first poll")
        self.stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        first, second = 2 * self.most + 10, 4 * self.most + 20
        assert self.cancel([(first, first + 1)]) == 1, "another batch"
        assert self.cancel([(first, second)]) == second - first - 1, "all of it"
        stage.group.now_ms += 2 * HOUR_MS
        seen: list[int] = []
        while leased := stage.poll(1000, what="poll of what is due"):
            seen += [at for piece in leased.pieces for at in range(piece.start, piece.end)]
            assert stage.acknowledge(leased) == []
        wanted = {at for at in range(first) if at % 2 or at >= 2 * self.most}
        assert {at for at in seen if at < second} == wanted


class Stretches(Scenario):
    """The index has as many priority index as it may: batches whose priorities alternate."""

    name = "stretches"
    limits = ("queue/priority_index.py:STRETCHES_MAX",)

    def fill(self) -> None:
        stage = self.stage
        self.most = stage.limit("queue.priority_index", "STRETCHES_MAX", 100)
        frames = [origin(ONE, priority=level) for level in range(8)]
        stage.poll(what="open")
        stage.produce(frames[at % 8] for at in range(self.most + 1_000))

    def is_full(self) -> None:
        stage = self.stage
        stage.produce([origin(ONE, priority=at % 8) for at in range(16)])
        live = stage.leader.replica._live
        assert live is not None
        assert live.partition.priority_index.size <= self.most
        found = stage.poll(10, what="first poll")
        assert found is not None
        assert found.pieces
        stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        end, seen = stage.end, 0
        while (leased := stage.poll(PORTION, consumer=1)) is not None and seen < 100_000:
            assert stage.acknowledge(leased) == []
            seen += sum(piece.end - piece.start for piece in leased.pieces)
        assert seen > min(end // 2, 50_000)
        # Past the next attempt to make it smaller.
        frames = [origin(ONE, priority=level) for level in range(8)]
        stage.produce(frames[at % 8] for at in range(8_500 if self.stage.scale >= 1 else 100))
