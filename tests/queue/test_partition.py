"""The partition's state machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind, Index, Offset, Origin, encode_batch
from quivermq.errors import BrokenInvariant, InvalidRequest, UnsupportedFormat
from quivermq.queue import Partition, TopicSettings, settings_command


def stamped(frame: Frame, partition: Partition, *, term: int = 1, at_ms: int = 0) -> Frame:
    return frame.stamped(
        term=term,
        index=Index(partition.applied_index + 1),
        base_offset=partition.next_offset,
        timestamp_ms=max(at_ms, partition.timestamp_ms),
    )


def data(*values: bytes, producer: int = 0, sequence: int = 0) -> Frame:
    return encode_batch(list(values), origin=Origin(producer_id=producer, sequence=sequence))


FRAMES = st.one_of(
    st.lists(st.binary(max_size=5), min_size=1, max_size=4).map(lambda values: data(*values)),
    st.just(Frame.of(FrameKind.NOOP)),
    st.binary(max_size=9).map(lambda body: Frame.of(FrameKind.MEMBERSHIP, body)),
    st.integers(1, 9).map(
        lambda n: Frame.of(FrameKind.COMMAND, settings_command(TopicSettings(max_deliveries=n)))
    ),
)


def test_offsets_count_messages_and_the_index_counts_entries() -> None:
    partition = Partition()
    for frame in (data(b"a", b"b"), Frame.of(FrameKind.NOOP), data(b"c")):
        partition.apply(stamped(frame, partition, at_ms=9))
    assert (partition.applied_index, partition.next_offset) == (3, 3)
    assert partition.timestamp_ms == 9


def test_entries_cannot_be_skipped_or_applied_twice() -> None:
    partition = Partition()
    first = stamped(data(b"a"), partition)
    partition.apply(first)
    for wrong in (
        first,
        data(b"b").stamped(term=1, index=Index(3), base_offset=Offset(1), timestamp_ms=0),
        data(b"b").stamped(term=1, index=Index(2), base_offset=Offset(0), timestamp_ms=0),
    ):
        with pytest.raises(BrokenInvariant):
            partition.apply(wrong)


@given(st.lists(FRAMES, max_size=30), st.integers(0, 30))
def test_a_checkpoint_anywhere_leads_to_the_same_state(frames: list[Frame], at: int) -> None:
    straight, resumed = Partition(), Partition()
    for number, frame in enumerate(frames):
        if number == at:
            resumed = Partition.restore(resumed.checkpoint())
        entry = stamped(frame, straight)
        straight.apply(entry)
        resumed.apply(entry)
    assert resumed.checkpoint() == straight.checkpoint()
    assert resumed.digest == straight.digest
    straight.validate()


def test_dedup_survives_a_checkpoint() -> None:
    partition = Partition()
    frame = stamped(data(b"a", b"b", producer=5), partition)
    partition.apply(frame)
    again = Partition.restore(partition.checkpoint())
    assert again.producers.find_repeat(frame.header).base_offset == 0
    assert again.producers.position(5) == (0, 2)


def test_the_digest_tells_different_entries_apart() -> None:
    digests = set()
    for value in (b"a", b"b"):
        for term in (1, 2):
            partition = Partition()
            partition.apply(stamped(data(value), partition, term=term))
            digests.add(partition.digest)
    assert len(digests) == 4


def test_settings_take_effect_when_applied() -> None:
    partition = Partition()
    wanted = TopicSettings(retention_ms=1000, dead_letter="failed", rate_per_second=0.5)
    partition.apply(stamped(Frame.of(FrameKind.COMMAND, settings_command(wanted)), partition))
    assert partition.settings == wanted
    assert Partition.restore(partition.checkpoint()).settings == wanted


def test_a_command_or_checkpoint_of_a_newer_release_is_not_guessed_at() -> None:
    partition = Partition()
    with pytest.raises(UnsupportedFormat, match="newer release"):
        partition.apply(stamped(Frame.of(FrameKind.COMMAND, b"\xff"), partition))
    with pytest.raises(UnsupportedFormat, match="version 9"):
        Partition.restore(b"\x09" + partition.checkpoint()[1:])


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention_ms": -1},
        {"max_deliveries": 0},
        {"rate_burst": 0},
        {"delete_acked": 1},
        {"retention_bytes": True},
        {"dead_letter": 5},
        {"dead_letter": "../orders"},
        {"rate_per_second": float("nan")},
        {"retention_messages": 2**70},
    ],
)
def test_settings_that_make_no_sense_are_refused_before_they_are_proposed(wrong) -> None:
    with pytest.raises(InvalidRequest):
        settings_command(TopicSettings(**wrong))
