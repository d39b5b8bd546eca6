"""The data directory: whose it is, what it holds, and what must not be mistaken for a fresh one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.cluster import METADATA_PARTITION
from quivermq.errors import Corrupt, InvalidRequest, StorageFailed, UnsupportedFormat
from quivermq.log import Log, RealDisk
from quivermq.node import Machine
from quivermq.node import data_dir as directory_module
from quivermq.node.data_dir import DataDirectory, ListedLog
from quivermq.node.mirrored_file import MirroredFile, _encoded, _Encoder

METADATA = ListedLog("log/_quiver/0", 1)
ORDERS = ListedLog("log/orders/0", 1)
ORDERS_GROUP = b"orders'  number0"
LISTED = {METADATA_PARTITION.hex(): METADATA, ORDERS_GROUP.hex(): ORDERS}
FILES = ["identity.json", "identity.copy.json", "logs.json", "logs.copy.json"]


def used(root: Path) -> None:
    """A directory of a broker that is a member and holds a partition."""
    directory = DataDirectory(str(root), 1)
    for group, log in LISTED.items():
        Log.create(directory.disk, log.folder, bytes.fromhex(group), member=log.member)
    directory.list_logs(LISTED)
    directory.settle("c1", 1)
    directory.close()


def opened(root: Path) -> DataDirectory:
    directory = DataDirectory(str(root), 1)
    directory.tidy_up()
    directory.close()
    return directory


def make(root: Path, folder: str, group: bytes, member: int = 1) -> None:
    directory = DataDirectory(str(root), 1)
    Log.create(directory.disk, folder, group, member=member)
    directory.close()


def test_every_start_is_counted_and_the_identity_stays(tmp_path: Path) -> None:
    first = DataDirectory(str(tmp_path), 1)
    first.list_logs({METADATA_PARTITION.hex(): METADATA})
    first.settle("c1", 1)
    first.close()
    second = DataDirectory(str(tmp_path), 1)
    second.close()
    assert (first.identity.boot, second.identity.boot) == (1, 2)
    assert second.identity.directory_id == first.identity.directory_id
    assert (second.identity.cluster_id, second.identity.member) == ("c1", 1)


def test_only_one_process_has_a_directory(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), 1)
    with pytest.raises(StorageFailed, match="another process"):
        DataDirectory(str(tmp_path), 1)
    directory.close()
    DataDirectory(str(tmp_path), 1).close()


def test_a_directory_of_another_node_is_refused_and_left_unlocked(tmp_path: Path) -> None:
    DataDirectory(str(tmp_path), 1).close()
    with pytest.raises(InvalidRequest, match="belongs to node 1"):
        DataDirectory(str(tmp_path), 2)
    DataDirectory(str(tmp_path), 1).close()


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    for expected in ("lost+found", ".hidden"):
        (tmp_path / expected).mkdir()
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidRequest, match=r"holds 'thesis.txt'.*an empty --data-dir"):
        DataDirectory(str(tmp_path), 1)
    assert not (tmp_path / "identity.json").exists()
    (tmp_path / "thesis.txt").unlink()
    DataDirectory(str(tmp_path), 1).close()


def test_what_is_listed_is_known_at_the_next_start(tmp_path: Path) -> None:
    used(tmp_path)
    directory = opened(tmp_path)
    assert (directory.logs, directory.unlisted) == (LISTED, {})


def damages(data: bytes, other: bytes) -> list[bytes | None]:
    """Every kind of damage to a file; None: it is gone."""
    flips = [bytearray(data) for _ in range(0, len(data), 29)]
    for number, flipped in enumerate(flips):
        flipped[number * 29] ^= 1 << number % 8
    return [
        None,
        b"",
        b"{",
        b"[]",
        b"\xff",
        data[: len(data) // 2],
        bytes(len(data)),
        other,
        *flips,
    ]


@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_one_file_loses_nothing(tmp_path: Path, name: str) -> None:
    used(tmp_path)
    known = opened(tmp_path)
    whole = {file: (tmp_path / file).read_bytes() for file in FILES}
    other = whole["logs.json" if "identity" in name else "identity.json"]
    for content in damages(whole[name], other):
        for file, data in whole.items():
            (tmp_path / file).write_bytes(data)
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        directory = opened(tmp_path)
        assert directory.logs == known.logs
        assert directory.identity.lives[:-1] == known.identity.lives
        assert directory.identity.directory_id == known.identity.directory_id
        for first, second in (FILES[:2], FILES[2:]):
            assert (tmp_path / first).read_bytes() == (tmp_path / second).read_bytes()


def test_damage_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    used(tmp_path)
    (tmp_path / "logs.json").write_bytes(b"")
    opened(tmp_path)
    assert "logs.json is damaged" in caplog.text
    assert "made again" in caplog.text


@pytest.mark.parametrize("number", [0, 1])
def test_of_two_copies_the_newer_holds(tmp_path: Path, number: int) -> None:
    """A crash between the two leaves one of them behind."""
    used(tmp_path)
    stale = (tmp_path / FILES[2 + number]).read_bytes()
    make(tmp_path, "log/orders/1", b"orders'  number1")
    directory = DataDirectory(str(tmp_path), 1)
    logs = {**LISTED, "00" * 16: ListedLog("log/orders/1", 1)}
    directory.list_logs(logs)
    directory.close()
    (tmp_path / FILES[2 + number]).write_bytes(stale)
    assert opened(tmp_path).logs == logs


@pytest.mark.parametrize("kind", ["identity", "logs"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff"])
def test_files_that_are_lost_are_never_taken_for_a_fresh_start(
    tmp_path: Path, kind: str, content: bytes | None
) -> None:
    used(tmp_path)
    for path in tmp_path.glob(f"{kind}*.json"):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    with pytest.raises(Corrupt, match=rf"{kind}\.json.*quiver cluster replace 1"):
        DataDirectory(str(tmp_path), 1)
    assert (tmp_path / "log/orders/0").is_dir()


@pytest.mark.parametrize("name", ["identity", "logs"])
def test_files_of_an_earlier_build_are_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    used(tmp_path)
    (tmp_path / f"{name}.copy.json").unlink()
    old = json.dumps({"node_id": 1, "directory_id": "00", "boot": 1}).encode()
    (tmp_path / f"{name}.json").write_bytes(old)
    with pytest.raises(UnsupportedFormat, match="earlier build"):
        DataDirectory(str(tmp_path), 1)
    assert (tmp_path / f"{name}.json").read_bytes() == old


@pytest.mark.parametrize("name", ["identity", "logs"])
def test_files_of_a_later_build_are_refused_and_left_alone(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(tmp_path)
    with monkeypatch.context() as later:
        later.setattr("quivermq.node.mirrored_file.VERSION", 2)
        MirroredFile(name).write(RealDisk(tmp_path), {})
    before = (tmp_path / f"{name}.json").read_bytes()
    with pytest.raises(UnsupportedFormat, match="version 2"):
        DataDirectory(str(tmp_path), 1)
    assert (tmp_path / f"{name}.json").read_bytes() == before


@pytest.mark.parametrize("field", ["boot", "member", "node_id"])
def test_an_identity_with_nonsense_in_it_is_refused(tmp_path: Path, field: str) -> None:
    used(tmp_path)
    file, disk = MirroredFile("identity"), RealDisk(tmp_path)
    content, _ = file.read(disk)
    file.write(disk, {**content, field: "x"})
    with pytest.raises(Corrupt, match="identity"):
        DataDirectory(str(tmp_path), 1)


@pytest.mark.parametrize(
    "line",
    [
        {"no hex": {"folder": "log/orders/0", "member": 1}},
        {"00" * 16: {"folder": 7, "member": 1}},
        {"00" * 16: {"folder": "log/orders/0", "member": "1"}},
        {"00" * 16: {"folder": "log/orders/0"}},
        {"00" * 16: None},
    ],
)
def test_a_list_with_nonsense_in_it_is_refused(tmp_path: Path, line: dict[str, object]) -> None:
    used(tmp_path)
    file, disk = MirroredFile("logs"), RealDisk(tmp_path)
    content, _ = file.read(disk)
    file.write(disk, {**content, **line})
    with pytest.raises(Corrupt, match="no list of logs"):
        DataDirectory(str(tmp_path), 1)


def test_a_list_that_is_gone_before_anything_was_listed_is_no_loss(tmp_path: Path) -> None:
    DataDirectory(str(tmp_path), 1).close()
    (tmp_path / "log/_quiver/0.tmp").mkdir(parents=True)
    assert opened(tmp_path).logs == {}
    assert not (tmp_path / "log/_quiver/0.tmp").exists()


def test_a_log_beside_the_list_is_looked_into_and_kept(tmp_path: Path) -> None:
    used(tmp_path)
    make(tmp_path, "log/orders/1", b"orders'  number1")
    make(tmp_path, "log/orders/2", b"of another node.", member=2)
    make(tmp_path, "log/orders/4", ORDERS_GROUP)
    (tmp_path / "log/orders/3").mkdir()
    directory = opened(tmp_path)
    assert directory.logs == LISTED
    assert directory.unlisted == {b"orders'  number1".hex(): ListedLog("log/orders/1", 1)}
    assert {path.name for path in (tmp_path / "log/orders").iterdir()} == {*"01234"}


def test_what_is_taken_out_is_deleted_only_if_it_says_that_it_is_the_one(tmp_path: Path) -> None:
    used(tmp_path)
    for number, damage in (("1", "state*"), ("2", None), ("3", None)):
        make(tmp_path, f"log/orders/{number}", f"orders'  number{number}".encode())
        for path in (tmp_path / f"log/orders/{number}").glob(damage or "nothing"):
            path.unlink()
    directory = DataDirectory(str(tmp_path), 1)
    groups = [f"orders'  number{number}".encode().hex() for number in (0, 1, 2)]
    logs = [ListedLog(f"log/orders/{number}", 1) for number in (0, 1, 2)]
    directory.list_logs(dict(zip(groups, logs, strict=True)))
    directory.tidy_up()
    strange = b"orders'  number3".hex()
    directory.delete_removed(directory.take_out([*groups[:2], strange]))
    directory.close()
    assert directory.logs == {groups[2]: logs[2]}
    assert [path.name for path in (tmp_path / "log/orders").iterdir()] == ["2"]
    # One that could not say whose it is, and one that no list named.
    kept = sorted(path.name[:8] for path in (tmp_path / "quarantine").iterdir())
    assert kept == ["orders-1", "orders-3"]
    assert list((tmp_path / "removed").iterdir()) == []


def test_the_quarantine_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "QUARANTINE_MAX", 1)
    used(tmp_path)
    for path in tmp_path.glob("log/*/0/state*"):
        path.unlink()
    directory = DataDirectory(str(tmp_path), 1)
    directory.take_out(LISTED)
    directory.close()
    assert len(directory.logs) == 1
    (left,) = directory.logs.values()
    assert (tmp_path / left.folder).is_dir()


def test_a_removal_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    used(tmp_path)
    (tmp_path / "removed").mkdir()
    (tmp_path / ORDERS.folder).rename(tmp_path / "removed/orders-0-00")
    directory = opened(tmp_path)
    assert directory.logs == {METADATA_PARTITION.hex(): METADATA}
    assert list((tmp_path / "removed").iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        DataDirectory(str(tmp_path / "file" / "data"), 1)


def test_a_file_system_that_takes_a_for_a_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Machine().lock(str(tmp_path))()
    assert not caplog.messages
    # There, the lock would also be found by this name.
    (tmp_path / "LOCK").touch()
    Machine().lock(str(tmp_path))()
    assert "takes A for a" in caplog.text


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
CONTENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=5)


@given(st.lists(CONTENTS, min_size=1, max_size=4))
def test_a_list_is_encoded_by_what_changed_as_if_it_was_encoded_whole(
    contents: list[dict[str, Any]],
) -> None:
    encoder = _Encoder()
    for serial, content in enumerate(contents):
        known = {key: contents[serial - 1].get(key, value) for key, value in content.items()}
        for each in (content, known):
            assert encoder.encode("logs", 1, serial, each) == _encoded("logs", 1, serial, each)
