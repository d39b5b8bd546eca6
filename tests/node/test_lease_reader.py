"""What leaves of leased messages: all of them, in order, cut to size, within its bytes."""

from random import Random

import pytest

from quivermq.batches import Frame, Index, Limits, Offset, decode_messages, encode_batch
from quivermq.log import LogSettings
from quivermq.node.delivery.lease_reader import before, beyond, pack, read_runs, runs_of
from quivermq.queue import Interval, Piece
from tests.log.logs import new_log

ENDLESS = 1 << 30


def stored(*counts: int, size: int = 20) -> list[Frame]:
    frames, offset = [], 0
    for number, count in enumerate(counts, 1):
        values = [b"%06d" % (offset + n) + bytes(size) for n in range(count)]
        frame = encode_batch(values)
        frames.append(
            frame.stamped(
                term=1, index=Index(number), base_offset=Offset(offset), timestamp_ms=number
            )
        )
        offset += count
    return frames


def offsets(frames: list[Frame]) -> list[int]:
    found = [message for frame in frames for message in decode_messages(frame)]
    assert [int(message.value[:6]) for message in found] == [message.offset for message in found]
    return [message.offset for message in found]


def messages(runs: list[Interval]) -> list[int]:
    return [offset for start, end in runs for offset in range(start, end)]


def test_a_batch_of_which_half_is_leased_leaves_whole() -> None:
    (frame,) = stored(10)
    assert pack([frame], [(0, 5)], ENDLESS, at_least_one=True).frames == [frame]
    (part,) = pack([frame], [(6, 10)], ENDLESS, at_least_one=True).frames
    assert offsets([part]) == [6, 7, 8, 9]


def test_gaps_are_left_out_while_they_are_few() -> None:
    (frame,) = stored(100)
    few = [(0, 1), (50, 52), (99, 100)]
    assert offsets(pack([frame], few, ENDLESS, at_least_one=True).frames) == messages(few)
    many = [(n, n + 1) for n in range(10, 50, 4)]
    assert offsets(pack([frame], many, ENDLESS, at_least_one=True).frames) == list(range(10, 47))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_leased_the_batches_hold_all_of_it_before_the_end_that_they_say(
    seed: int,
) -> None:
    dice = Random(seed)
    frames = stored(*[dice.choice([1, 2, 10, 50]) for _ in range(20)])
    total = frames[-1].header.next_offset
    cuts = sorted(dice.sample(range(total + 1), 2 * dice.randint(1, 10)))
    runs = list(zip(cuts[::2], cuts[1::2], strict=True))
    for bytes_max in (1, 500, 5_000, ENDLESS):
        sent, end = pack(frames, runs, bytes_max, at_least_one=True)
        wanted = [offset for offset in messages(runs) if offset < end]
        assert wanted
        found = offsets(sent)
        assert set(wanted) <= set(found)
        assert found == sorted(set(found))
        assert sum(map(len, sent)) <= max(bytes_max, 1_000)
        pieces = [Piece(start, stop, 0, 0) for start, stop in runs]
        given, rest = runs_of(before(pieces, end)), beyond(pieces, end)
        assert messages(given) == wanted
        assert messages(given) + messages(rest) == messages(runs)
    assert end >= runs[-1][1]


def test_behind_another_partition_nothing_need_be_sent() -> None:
    (frame,) = stored(10)
    sent, end = pack([frame], [(0, 10)], 1, at_least_one=False)
    assert (sent, end) == ([], 0)


@pytest.mark.parametrize("message_bytes", [1.0, 1e6])
def test_the_log_gives_the_batches_of_all_runs(message_bytes: float) -> None:
    _, log = new_log()
    frames = stored(5, 1, 30, 4, 10)
    log.append(frames)
    end = log.edge.next_index
    assert read_runs(log, [(0, 50)], end, ENDLESS, message_bytes) == frames
    some = read_runs(log, [(2, 3), (4, 5), (37, 41)], end, ENDLESS, message_bytes)
    assert some == [frames[0], frames[3], frames[4]]


def test_a_batch_that_only_larger_limits_let_in_can_be_cut_all_the_same() -> None:
    limits = Limits(message_bytes_max=32 << 20, batch_bytes_max=64 << 20)
    frame = encode_batch([b"%d" % number + bytes(10 << 20) for number in range(3)], limits=limits)
    (part,) = pack([frame], [(1, 2)], ENDLESS, at_least_one=True).frames
    assert [message.value[:1] for message in decode_messages(part, limits)] == [b"1"]


def test_a_few_batches_of_many_do_not_hold_on_to_what_was_read_with_them() -> None:
    _, log = new_log(LogSettings())
    frames = stored(*[1] * 40)
    log.append(frames)
    few = read_runs(log, [(3, 4), (30, 31)], Index(41), ENDLESS, 100.0)
    assert offsets(few) == [3, 30]
    assert {type(frame.body) for frame in few} == {bytes}
    many = read_runs(log, [(0, 40)], Index(41), ENDLESS, 100.0)
    assert {type(frame.body) for frame in many} == {memoryview}
