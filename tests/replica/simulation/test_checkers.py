"""Each checker passes an honest history, and fails on one with its own fault planted."""

from collections.abc import Callable

import pytest

from quivermq.batches import Frame, FrameKind, Index, Offset, Origin, encode_batch
from quivermq.replica.effects import Produced
from quivermq.testing import Violation
from tests.replica.simulation.checkers import (
    Acknowledged,
    CommittedPrefix,
    FreshReads,
    NewestEpoch,
    NothingGoesBack,
    NothingUnsent,
    OneAnswer,
    OneCopy,
    OneLeader,
    OneVote,
    ProducerOrder,
    ReplicaContents,
    SameDigest,
    SoundSleep,
    TimeOrder,
)


def batch(sequence: int, *, producer: int = 1, epoch: int = 0, count: int = 1) -> Frame:
    values = [b"%d.%d" % (producer, sequence + number) for number in range(count)]
    return encode_batch(values, origin=Origin(producer, epoch, sequence))


def placed(frame: Frame, index: int, offset: int) -> Frame:
    return frame.stamped(
        term=1, index=Index(index), base_offset=Offset(offset), timestamp_ms=1000 + index
    )


def log(*frames: Frame) -> list[Frame]:
    """The frames one after another, from index 2 and offset 0."""
    stored, offset = [], 0
    for index, frame in enumerate(frames, 2):
        stored.append(placed(frame, index, offset))
        offset += frame.header.count
    return stored


def told(frame: Frame) -> Produced:
    header = frame.header
    return Produced(header.base_offset, header.count, header.timestamp_ms, is_repeat=False)


HONEST = log(batch(0), Frame.of(FrameKind.NOOP), batch(0, producer=2, count=2), batch(1))


def acknowledged() -> Acknowledged:
    checker = Acknowledged()
    for frame in HONEST:
        if frame.header.count:
            checker.ack(frame, told(frame))
    return checker


def test_acknowledged_passes_equal_copies_and_those_that_dropped_their_front() -> None:
    acknowledged().check(
        [
            ReplicaContents(1, 4, HONEST),
            ReplicaContents(2, 4, HONEST[2:]),
            ReplicaContents(3, 4, []),
        ]
    )


@pytest.mark.parametrize(
    "frames",
    [
        HONEST[:-1],
        [*HONEST[:2], *log(*HONEST[:2], batch(5, producer=2, count=2), batch(1))[2:]],
        [HONEST[0], *HONEST[3:]],
        [*HONEST[:3], placed(batch(1), 9, 3)],
    ],
    ids=["end missing", "another batch", "hole", "another time"],
)
def test_acknowledged_fails_on_what_is_missing_or_different(frames: list[Frame]) -> None:
    with pytest.raises(Violation, match="I1"):
        acknowledged().check([ReplicaContents(1, 4, HONEST), ReplicaContents(2, 4, frames)])


def test_acknowledged_fails_when_a_repeat_is_told_other_offsets() -> None:
    checker = acknowledged()
    checker.ack(HONEST[0], told(HONEST[0]))
    with pytest.raises(Violation, match="I1"):
        checker.ack(HONEST[0], Produced(Offset(7), 1, 1002, is_repeat=True))


def test_nothing_unsent() -> None:
    checker = NothingUnsent()
    checker.send(HONEST[0], [b"1.0"])
    checker.check(HONEST[:2])
    with pytest.raises(Violation, match="I2"):
        checker.check(HONEST)
    checker.sent.clear()
    checker.send(HONEST[0], [b"1.0", b"more"])
    with pytest.raises(Violation, match="I2"):
        checker.check(HONEST[:1])


def test_producer_order_passes_several_producers_and_a_new_epoch() -> None:
    ProducerOrder().check(log(batch(0, count=3), batch(0, producer=2), batch(3), batch(0, epoch=1)))


@pytest.mark.parametrize(
    "frames",
    [
        log(batch(1), batch(0)),
        log(batch(0), batch(2)),
        log(batch(0), batch(0, epoch=1), batch(1)),
        log(batch(0), batch(0)),
    ],
    ids=["swapped", "gap", "zombie", "twice"],
)
def test_producer_order_fails(frames: list[Frame]) -> None:
    with pytest.raises(Violation, match="I3"):
        ProducerOrder().check(frames)


def test_one_copy() -> None:
    OneCopy().check(HONEST)
    with pytest.raises(Violation, match="stored twice"):
        OneCopy().check(log(batch(0), batch(1), batch(0)))
    with pytest.raises(Violation, match="offset"):
        OneCopy().check([HONEST[0], placed(batch(1), 3, 7)])


def test_time_order() -> None:
    TimeOrder().check(HONEST)
    with pytest.raises(Violation, match="2 ms before"):
        TimeOrder().check([HONEST[2], HONEST[0]])


@pytest.mark.parametrize("now", [(1, 5, 5), (2, 4, 4), (2, 5, 3), (2, 5, 6)])
def test_nothing_goes_back(now: tuple[int, int, int]) -> None:
    checker = NothingGoesBack()
    checker.see(1, 0, 2, 5, 4)
    checker.see(1, 1, 1, 1, 1)
    with pytest.raises(Violation, match="I6"):
        checker.see(1, 0, *now)


def test_a_saved_term_is_not_forgotten() -> None:
    checker = NothingGoesBack()
    checker.save_term(1, 3)
    checker.save_term(1, 3)
    with pytest.raises(Violation, match="forgot"):
        checker.save_term(1, 2)


def test_the_committed_prefix_is_the_same_everywhere_and_for_ever() -> None:
    checker = CommittedPrefix()
    for member in (1, 2):
        checker.apply(member, HONEST[0])
    assert (
        checker.check([ReplicaContents(1, 4, HONEST), ReplicaContents(2, 4, HONEST[1:])]) == HONEST
    )
    with pytest.raises(Violation, match="I6"):
        checker.apply(3, placed(batch(9), 2, 0))


def _two_leaders() -> None:
    checker = OneLeader()
    checker.see(1, 4, is_repairing=False)
    checker.see(1, 4, is_repairing=False)
    checker.see(2, 5, is_repairing=False)
    checker.see(2, 4, is_repairing=False)


def _damaged_leader() -> None:
    OneLeader().see(1, 4, is_repairing=True)


def _two_votes() -> None:
    checker = OneVote()
    checker.see(1, 4, 2, is_repairing=False)
    checker.see(1, 4, 2, is_repairing=False)
    checker.see(1, 4, 3, is_repairing=False)


def _damaged_voter() -> None:
    OneVote().see(1, 4, 2, is_repairing=True)


def _diverged() -> None:
    checker = SameDigest()
    checker.see(1, 10, 77)
    checker.see(2, 10, 77)
    checker.see(3, 10, 78)


def _stale_read() -> None:
    checker = FreshReads()
    checker.finish(5, 5)
    checker.finish(5, 4)


def _fenced_newest() -> None:
    checker = NewestEpoch()
    checker.begin(1, 0)
    checker.begin(1, 1)
    checker.fence(1, 0, "old")
    checker.fence(1, 1, "why")


def _answered_twice() -> None:
    checker = OneAnswer()
    checker.ask(7, member=1, life=0)
    checker.answer(7, 1)
    checker.answer(7, 1)


def _never_answered() -> None:
    checker = OneAnswer()
    checker.ask(7, member=1, life=0)
    checker.check({1: 1})
    checker.check({1: 0})


def _slept_too_early() -> None:
    checker = SoundSleep()
    checker.see(1, 10, {1: 10, 2: 10, 3: 11})
    checker.see(1, 10, {1: 10, 2: 9})


@pytest.mark.parametrize(
    ("history", "text"),
    [
        (_two_leaders, "both lead"),
        (_damaged_leader, "F14"),
        (_two_votes, "votes for"),
        (_damaged_voter, "F14"),
        (_diverged, "differ at 10"),
        (_stale_read, "a read ends at 4"),
        (_fenced_newest, "F27"),
        (_answered_twice, "does not owe"),
        (_never_answered, "never answered"),
        (_slept_too_early, "node 1 sleeps"),
    ],
)
def test_a_planted_fault_is_found_and_only_at_its_last_step(
    history: Callable[[], None], text: str
) -> None:
    with pytest.raises(Violation, match=text):
        history()
