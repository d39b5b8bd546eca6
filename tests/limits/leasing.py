"""Limits of what one group has under way."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest

from quivermq.batches import encode_batch
from quivermq.errors import Overloaded
from quivermq.queue import GrantedLease, LeaseManager
from quivermq.queue.group import DyingMessages
from quivermq.queue.selection import PIECES_AT_ONCE
from tests.limits.stage import HOUR_MS, Scenario, delayed

THOUSAND: Final = encode_batch([b"."] * 1000)
PORTION: Final = 2_000
"""Intervals that a broker settles in one turn."""


def every_other(leased: GrantedLease) -> list[tuple[int, int]]:
    """Single messages of a lease, with one between two of them."""
    return [(at, at + 1) for piece in leased.pieces for at in range(piece.start, piece.end, 2)]


def portions(parts: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    for at in range(0, len(parts), PORTION):
        yield parts[at : at + PORTION]


class Leases(Scenario):
    """One group has as many leases as it may."""

    name = "leases"
    limits = ("queue/lease_manager.py:LEASES_MAX",)

    def fill(self) -> None:
        stage = self.stage
        most = stage.limit("queue.lease_manager", "LEASES_MAX")
        stage.produce([THOUSAND] * (most // 1000 + 2))
        self.held = stage.polls(["g"] * most)

    def is_full(self) -> None:
        stage = self.stage
        with pytest.raises(Overloaded, match="live leases"):
            stage.poll(what="first poll")
        stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        first, *_, last = self.held
        assert stage.acknowledge(first) == []
        assert stage.acknowledge(first, what="repeated ack") == []
        found = stage.poll()
        assert found is not None
        stage.group.now_ms += 2 * HOUR_MS
        assert stage.ring() > 0
        assert not stage.leader.replica.groups.by_name["g"].leases
        assert stage.acknowledge(last, what="late ack") == [], "nobody else has it"
        assert stage.poll(1000, what="poll of what came back") is not None


class Pieces(Scenario):
    """One group has as many pieces under way as it may: leases of which every other message is
    acknowledged."""

    name = "pieces"
    limits = ("queue/selection.py:PIECES_MAX",)

    def fill(self) -> None:
        stage = self.stage
        most = stage.limit("queue.selection", "PIECES_MAX", 2_000)
        stage.produce([THOUSAND] * (2 * most // 1000 + 2))
        self.held: list[GrantedLease] = []
        while self.pieces < most:
            leased = stage.poll(min(2 * PIECES_AT_ONCE, 2 * (most - self.pieces)))
            assert leased is not None
            for parts in portions(every_other(leased)):
                assert stage.acknowledge(leased, parts) == []
            self.held.append(leased)

    @property
    def pieces(self) -> int:
        groups = self.stage.leader.replica.groups
        assert groups is not None
        return groups.by_name["g"].leased_pieces if "g" in groups.by_name else 0

    def is_full(self) -> None:
        assert self.stage.poll(what="first poll") is None
        self.stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        *_, last = self.held
        for parts in portions(every_other(last)):
            assert stage.acknowledge(last, parts) == [], "a repeat is recognised"
        assert stage.acknowledge(last, what="ack of the rest") == []
        assert stage.poll(100, what="fresh") is not None
        while stage.with_leases(
            "release", lambda lease_manager: lease_manager.release_consumer("g", 1)
        ):
            pass
        got = 0
        while got < 3 * PIECES_AT_ONCE and (leased := stage.poll(PIECES_AT_ONCE, what="returned")):
            # As a broker does, which never settles more in one turn.
            for parts in portions([(piece.start, piece.end) for piece in leased.pieces]):
                assert stage.acknowledge(leased, parts) == []
            got += len(leased.pieces)
        assert got


class Spent(Scenario):
    """As much is remembered of acknowledged leases as may be, and more is acknowledged."""

    name = "spent"
    limits = ("queue/group.py:SETTLED_MAX", "queue/group.py:SETTLED_INTERVALS_MAX")

    def fill(self) -> None:
        stage = self.stage
        leases = stage.limit("queue.group", "SETTLED_MAX")
        intervals = stage.limit("queue.group", "SETTLED_INTERVALS_MAX", 200)
        each = 2 * (intervals // leases) + 2
        stage.produce([THOUSAND] * (leases * each // 1000 + 2))
        self.held = stage.polls(["g"] * leases, each)
        for leased in self.held:
            for parts in portions(every_other(leased)):
                stage.acknowledge(leased, parts)

    def is_full(self) -> None:
        known = self.stage.leader.replica.groups.by_name["g"]
        held = self.held
        assert 0 < len(known.settled_leases) < len(held), "the oldest are forgotten"
        parts = every_other(held[-1])
        assert self.stage.acknowledge(held[-1], parts, "repeated ack") == []
        assert self.stage.acknowledge(held[0], every_other(held[0]), "forgotten ack")

    def go_on(self) -> None:
        stage = self.stage
        for leased in self.held:
            assert stage.acknowledge(leased) == [], "the rest of it is still leased"
        floor = self.held[-1].pieces[-1].end
        assert stage.leader.replica.groups.by_name["g"].floor == floor
        assert stage.poll() is not None


class Holders(Scenario):
    """It is remembered of as many messages as may be who held them last."""

    name = "holders"
    limits = ("queue/last_holders.py:HOLDERS_MAX",)

    def fill(self) -> None:
        stage = self.stage
        self.most = stage.limit("queue.last_holders", "HOLDERS_MAX", 2 * PORTION)
        stage.limit("queue.selection", "PIECES_MAX", 20_000)
        stage.produce([THOUSAND] * (2 * self.most // 1000 + 10))
        self.held: list[GrantedLease] = []
        pieces = 0
        while pieces <= self.most + 100:
            leased = stage.poll(2 * PORTION)
            assert leased is not None
            assert stage.acknowledge(leased, every_other(leased)) == []
            self.held.append(leased)
            pieces += PORTION
        stage.group.now_ms += 2 * HOUR_MS
        stage.ring()

    def is_full(self) -> None:
        known = self.stage.leader.replica.groups.by_name["g"]
        assert len(known.last_holders) == self.most
        first = self.held[0].pieces[0].start + 1
        assert self.stage.acknowledge(self.held[0], [(first, first + 1)], "forgotten ack")
        self.stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        last = self.held[-1]
        rest = [(low + 1, high + 1) for low, high in every_other(last)]
        assert stage.acknowledge(last, rest, "late ack") == []
        again = stage.poll(PORTION, what="poll of what came back")
        assert again is not None
        assert stage.acknowledge(again) == []
        # Once more around: what is held last replaces what was.
        while (leased := stage.poll(PIECES_AT_ONCE)) is not None and leased.pieces[0].failures:
            pass
        stage.group.now_ms += 2 * HOUR_MS
        stage.ring()


class Groups(Scenario):
    """As many groups as a partition may have, each with a lease."""

    name = "groups"
    limits = ("queue/working_copy.py:GROUPS_MAX", "replica/settings.py:groups_max")

    def fill(self) -> None:
        stage = self.stage
        self.most = stage.setting("groups_max")
        stage.produce([THOUSAND] * 10)
        stage.polls((f"pod-{number:08x}" for number in range(self.most)), 10)
        assert len(stage.leader.replica.groups.by_name) == self.most

    def is_full(self) -> None:
        stage = self.stage
        with pytest.raises(Overloaded, match="delete some first"):
            stage.poll(name="one-more", what="first poll")
        assert stage.poll(name="pod-00000007", what="poll of a known group") is not None
        stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        end, now_ms = stage.end, stage.group.now_ms
        stage.with_leases(
            "describe", lambda lease_manager: lease_manager.describe(end, now_ms, "pod-00000007")
        )
        stage.with_leases(
            "drop", lambda lease_manager: lease_manager.working_copy.drop("pod-00000003")
        )
        assert stage.poll(name="one-more") is not None
        while not stage.with_leases(
            "trim", lambda lease_manager: lease_manager.working_copy.trim(5_000)
        ):
            pass
        stage.group.now_ms += 2 * HOUR_MS
        stage.ring()
        assert stage.poll(name="pod-00000007", consumer=2) is not None


class State(Scenario):
    """The state takes half of what a checkpoint may hold: dead letters with long reasons."""

    name = "state"
    limits = (
        "replica/settings.py:checkpoint_bytes_max",
        "log/settings.py:checkpoint_bytes_max",
        "queue/working_copy.py:STATE_BYTES_MAX",
    )

    def fill(self) -> None:
        stage = self.stage
        most = stage.setting("checkpoint_bytes_max", 200_000)
        letters = most // 2 // 1_000
        stage.produce([THOUSAND] * (letters // 1000 + 10))
        self.kept = stage.polls(["g"], 10)[0]
        while not stage.with_leases(
            "look", lambda lease_manager: lease_manager.working_copy.is_full
        ):
            leased = stage.poll(200)
            if leased is None:
                break
            stage.with_leases("reject", partial(_reject_each, leased, stage.group.now_ms))
        assert stage.with_leases("look", lambda lease_manager: lease_manager.working_copy.is_full)

    def is_full(self) -> None:
        stage = self.stage
        with pytest.raises(Overloaded, match="the state of this partition"):
            stage.poll(what="first poll")
        with pytest.raises(Overloaded, match="the state of this partition"):
            stage.poll(name="another", what="poll of a new group")
        (refused,) = stage.attempt([delayed(stage.group.now_ms + HOUR_MS, b"later")])
        assert isinstance(refused, Overloaded)
        stage.produce([THOUSAND])
        stage.ring()

    def go_on(self) -> None:
        stage = self.stage
        assert stage.acknowledge(self.kept) == []
        while stage.with_leases("look", lambda lease_manager: lease_manager.working_copy.is_full):
            records = stage.with_leases(
                "dying", lambda lease_manager: lease_manager.dead_letters.dying()
            )
            stage.with_leases("bury", partial(_bury, records))
        assert stage.poll() is not None


def _reject_each(leased: GrantedLease, now_ms: int, lease_manager: LeaseManager) -> None:
    """A reason for each message, as long as one may be."""
    for piece in leased.pieces:
        for at in range(piece.start, piece.end):
            lease_manager.reject("g", leased.lease, [(at, at + 1)], f"{at:.>1000}", now_ms, 1)


def _bury(records: list[tuple[str, DyingMessages]], lease_manager: LeaseManager) -> None:
    for name, record in records:
        lease_manager.dead_letters.bury(name, record.number)
