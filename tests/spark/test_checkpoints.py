"""Plans in a checkpoint: read, compared, restored."""

from pathlib import Path

import pytest

from quivermq.spark.checkpoints import (
    PlanChanged,
    check_plan,
    is_same_plan,
    plan_of,
    restore_plan,
)

PLAN = 'v1\n{"batchTimestampMs":1}\n{"orders":{"0":10}}'
LATER = 'v1\n{"batchTimestampMs":2}\n{"orders":{"0":10}}'
OTHER = 'v1\n{"batchTimestampMs":2}\n{"orders":{"0":12}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkpoint"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "3").write_text(OTHER)
    (folder / "offsets" / ".3.crc").write_bytes(b"crc\0")
    return folder


def test_a_plan_is_found_by_path_and_by_url(checkpoint: Path) -> None:
    assert plan_of(str(checkpoint), 3) == OTHER
    assert plan_of(checkpoint.as_uri(), 3) == OTHER
    assert plan_of("file:" + str(checkpoint), 3) == OTHER
    assert plan_of(str(checkpoint), 4) is None
    assert plan_of("hdfs://elsewhere/checkpoint", 3) is None
    assert plan_of(None, 3) is None


def test_plans_are_compared_by_the_offsets_of_sources_only() -> None:
    assert is_same_plan(PLAN, LATER)
    assert not is_same_plan(PLAN, OTHER)
    assert is_same_plan(PLAN, None)


def test_a_changed_plan_is_restored_without_its_checksum(checkpoint: Path) -> None:
    with pytest.raises(PlanChanged, match=r"batch 3 is in the table already.*start the query"):
        check_plan(str(checkpoint), 3, PLAN, "the table")
    assert sorted(each.name for each in (checkpoint / "offsets").iterdir()) == ["3"]
    assert plan_of(str(checkpoint), 3) == PLAN
    check_plan(str(checkpoint), 3, PLAN, "the table")
    check_plan(str(checkpoint), 3, None, "the table")


def test_a_remote_checkpoint_cannot_be_restored() -> None:
    with pytest.raises(OSError, match="cannot be written from here"):
        restore_plan("hdfs://elsewhere/checkpoint", 3, PLAN)
