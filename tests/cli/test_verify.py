"""`quiver verify` on whole and damaged data directories."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quivermq.log import Log, RealDisk
from quivermq.log.layout import SEGMENT_HEADER_BYTES
from quivermq.node.data_dir import DataDirectory, ListedLog
from tests.cli import commands
from tests.log.entries import LOG_ID
from tests.log.logs import SMALL, fill


def quiver(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("quiver")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for partition in range(2):
        log = Log.create(RealDisk(tmp_path), f"log/orders/{partition}", LOG_ID, SMALL)
        fill(log, 6)
    return tmp_path


def segments(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob("log/orders/1/*.seg"))


def test_an_intact_data_directory_exits_0(data_dir: Path) -> None:
    done = quiver("verify", data_dir)
    assert done.returncode == 0, done.stderr
    assert "log/orders/0" in done.stdout
    assert "All 24 entries in 2 logs are intact." in done.stdout
    assert "damage" not in done.stdout


def test_damage_is_named_and_exits_1(data_dir: Path) -> None:
    path = segments(data_dir)[0]
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    done = quiver("verify", data_dir)
    assert done.returncode == 1
    at = SEGMENT_HEADER_BYTES
    assert f"log/orders/1/00000000000000000001.seg at byte {at}: entries 1 to 2" in done.stdout
    assert done.stderr == ""
    assert "1 of 2 logs is damaged" in done.stdout
    assert path.read_bytes() == content, "looking must not change anything"


def test_in_80_columns_no_state_is_cut_off(tmp_path: Path) -> None:
    name = "orders-of-all-customers-of-all-departments-of-all-countries-as-they-come-in"
    fill(Log.create(RealDisk(tmp_path), f"log/{name}/0", LOG_ID, SMALL), 6)
    done = commands.quiver("verify", tmp_path, variables={"COLUMNS": "80"})
    rows = done.stdout.splitlines()
    assert max(map(len, rows)) <= 80
    (row,) = [row for row in rows if row.startswith(" log/")]
    assert row.split()[-1] == "intact"


def test_files_beside_the_logs_are_checked_and_unused_logs_are_listed(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), 1)
    log = ListedLog("log/orders/0", 1)
    fill(Log.create(directory.disk, log.folder, LOG_ID, SMALL, member=1), 2)
    directory.list_logs({LOG_ID.hex(): log})
    directory.close()
    shutil.copytree(tmp_path / log.folder, tmp_path / "quarantine/orders-0-1234")
    assert quiver("verify", tmp_path).returncode == 0
    (tmp_path / "logs.json").write_bytes(b"")
    done = quiver("verify", tmp_path)
    assert done.returncode == 0
    assert "logs.json is damaged (it is no JSON); its other copy is intact" in done.stdout
    assert "quarantine/orders-0-1234 at byte 0: a broker set this log aside" in done.stdout
    assert "All 4 entries in 1 logs are intact." in done.stdout
    (tmp_path / "logs.copy.json").unlink()
    done = quiver("verify", tmp_path)
    assert done.returncode == 1
    assert "logs.copy.json is missing" in done.stdout
    assert "identity or its list of replicas is damaged" in done.stdout


def test_the_json_report_has_all_fields(data_dir: Path) -> None:
    segments(data_dir)[-1].unlink()
    done = quiver("verify", "--json", "--deep", data_dir)
    assert done.returncode == 1
    sound, broken = json.loads(done.stdout)
    assert (sound["folder"], sound["entries"], sound["messages"]) == ("log/orders/0", 12, 12)
    assert broken["damaged"]
    assert "missing" in broken["findings"][0]["text"]


@pytest.mark.parametrize("content", [None, "empty", "file"])
def test_a_wrong_data_directory_is_one_error_line(tmp_path: Path, content: str) -> None:
    target = tmp_path / "nowhere"
    if content == "empty":
        target.mkdir()
    elif content == "file":
        target.write_text("x")
    done = quiver("verify", target)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "data directory" in done.stderr


def test_wrong_usage_exits_2_and_help_and_version_exit_0() -> None:
    assert quiver("verify").returncode == 2
    assert quiver("verify", "--nonsense", ".").returncode == 2
    assert "DATA_DIR" in quiver("verify", "--help").stdout
    assert quiver("--version").stdout.startswith("quiver 0.")


def test_a_name_that_looks_like_markup_is_printed_as_it_is(tmp_path: Path) -> None:
    done = quiver("verify", tmp_path / "no[/such]")
    assert done.returncode == 1
    assert "no[/such] is not a folder" in done.stderr


def test_a_file_that_cannot_be_read_does_not_stop_the_check_of_others(data_dir: Path) -> None:
    (data_dir / "log/orders/0/00000000000000000001.ckpt").mkdir()
    (data_dir / "log/another/0/state").mkdir(parents=True)
    done = quiver("verify", data_dir)
    assert done.returncode == 1
    assert "2 of 3 logs are damaged." in done.stdout
    assert done.stderr == ""
