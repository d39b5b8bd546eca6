"""The data directory: whose it is, what it holds, and what must not be mistaken for a fresh one."""

import json
from pathlib import Path

import pytest

from quivermq.errors import Corrupt, InvalidRequest, StorageFailed
from quivermq.node.directory import Directory, ListedLog

METADATA = ListedLog("log/_quiver/0", 1)
ORDERS = ListedLog("log/orders/0", 1)


def used(root: Path) -> None:
    """A directory of a broker that is a member and holds a partition."""
    directory = Directory(str(root), 1)
    for log in (METADATA, ORDERS):
        directory.disk.make_folder(log.folder)
    directory.list_logs({"aa": METADATA, "bb": ORDERS})
    directory.settle("c1", 1)
    directory.close()


def test_every_start_is_counted_and_the_identity_stays(tmp_path: Path) -> None:
    first = Directory(str(tmp_path), 1)
    first.list_logs({"aa": METADATA})
    first.settle("c1", 1)
    first.close()
    second = Directory(str(tmp_path), 1)
    second.close()
    assert (first.identity.boot, second.identity.boot) == (1, 2)
    assert second.identity.directory_id == first.identity.directory_id
    assert (second.identity.cluster_id, second.identity.member) == ("c1", 1)


def test_only_one_process_has_a_directory(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path), 1)
    with pytest.raises(StorageFailed, match="another process"):
        Directory(str(tmp_path), 1)
    directory.close()
    Directory(str(tmp_path), 1).close()


def test_a_directory_of_another_node_is_refused_and_left_unlocked(tmp_path: Path) -> None:
    Directory(str(tmp_path), 1).close()
    with pytest.raises(InvalidRequest, match="belongs to node 1"):
        Directory(str(tmp_path), 2)
    Directory(str(tmp_path), 1).close()


def test_what_is_listed_is_known_at_the_next_start(tmp_path: Path) -> None:
    used(tmp_path)
    directory = Directory(str(tmp_path), 1)
    assert directory.logs == {"aa": METADATA, "bb": ORDERS}
    assert directory.unlisted_folders() == []
    directory.close()


def test_folders_that_a_crash_left_are_found(tmp_path: Path) -> None:
    used(tmp_path)
    (tmp_path / "log/orders/1").mkdir()
    (tmp_path / "log/orders/2.tmp").mkdir()
    directory = Directory(str(tmp_path), 1)
    assert directory.unlisted_folders() == ["log/orders/1", "log/orders/2.tmp"]
    directory.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"node_id": 1}'])
@pytest.mark.parametrize("name", ["identity.json", "logs.json"])
def test_a_damaged_file_is_never_taken_for_a_fresh_start(
    tmp_path: Path, name: str, content: bytes
) -> None:
    used(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Corrupt, match=name):
        Directory(str(tmp_path), 1)
    assert (tmp_path / "log/orders/0").is_dir()


@pytest.mark.parametrize("field", ["boot", "member", "node_id"])
def test_an_identity_with_nonsense_in_it_is_damaged(tmp_path: Path, field: str) -> None:
    used(tmp_path)
    path = tmp_path / "identity.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "x"}))
    with pytest.raises(Corrupt, match="identity"):
        Directory(str(tmp_path), 1)


@pytest.mark.parametrize("name", ["identity.json", "logs.json"])
def test_a_file_that_is_gone_is_never_taken_for_a_fresh_start(tmp_path: Path, name: str) -> None:
    used(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(Corrupt, match=name):
        Directory(str(tmp_path), 1)
    assert (tmp_path / "log/orders/0").is_dir()


def test_a_list_that_is_gone_before_anything_was_listed_is_no_loss(tmp_path: Path) -> None:
    Directory(str(tmp_path), 1).close()
    (tmp_path / "log/_quiver/0.tmp").mkdir(parents=True)
    directory = Directory(str(tmp_path), 1)
    assert directory.unlisted_folders() == ["log/_quiver/0.tmp"]
    directory.close()


def test_a_place_where_nothing_can_be_made_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        Directory(str(tmp_path / "file" / "data"), 1)
