"""Every example runs and says what it shows."""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.commands import environment
from tests.pages.terminal import Terminal

ROOT = Path(__file__).parents[1]
SHOWN = {
    "demo.py": [
        "read back as Arrow: 20,000 messages",
        "kills: 1",
        "lost, moved or doubled: none",
        "counted by Spark: 20,000 messages",
        "commits, each once",
        "SQL over it, back on a topic: p0 ",
    ],
    "celery_tasks.py": [
        "2 + 3 = 5",
        "fetched: pears, at try 2",
        "not before its countdown: True",
        "the worker is killed in the middle of a task\nthe next worker did it",
    ],
    "cluster_failover.py": ["leads, and is killed", "stored at offset 1", "[b'first', b'second']"],
    "worker.py": [
        "clumsy is killed in the middle of",
        "takes over",
        "0 of 60 jobs lost",
    ],
    "retry_and_dead_letter.py": [
        "delivery 3 of b'no pears'",
        "dead letter b'no pears': failed 3 times; the last time: ValueError: ",
        "billed b'no pears' at last",
        "dead letters left: 0",
    ],
    "priorities.py": [
        "sent last, delivered first: urgent",
        "30 of 40 deliveries were urgent",
        "5 of 40 deliveries were ordinary",
        "259 wait, ordinary ones in order: True",
    ],
    "sticky.py": [
        "with a second, it keeps [0, 1]\nand the second has [2, 3]",
        "alone again, it has [0, 1, 2, 3]",
        "ada   0 1 2 3 4 5 6 7 8 9",
        "fay   0 1 2 3 4 5 6 7 8 9",
    ],
    "handlers.py": [
        "ended by a signal, all handlers finished: True",
        "shop-orders of ada     0 1 2 3 4 5 6 7 8 9",
        "shop-returns of cleo   0 1 2 3 4 5 6 7 8 9",
        "left to do: 0",
    ],
    "replay.py": [
        "all again: 96",
        "since that moment: 90",
        "from offset 4: 50",
        "offsets 1 to 3 hold [2, 3, 40]; the group has 0 to do",
    ],
    "tracing.py": [
        "checkout\n  send orders\n    process orders\n      charge the card\n    ack orders\n",
    ],
    "faststream_app.py": [
        "order 0: 0.00 to pay",
        "order 1: 2.50 to pay",
        "order 2: 19.99 to pay",
        "order 3: -1.00 to pay",
    ],
    "fastapi_app.py": ["ready: {'brokers': 1}", "'offset': 2}", "counted: 2 apples"],
    "log_round_trip.py": ["wrote 1000 messages", "offset 654: order 654", "intact"],
    "replicated_log.py": [
        "and dies",
        "'order 0', 'order 1', 'order 2', 'order 3', 'order 4', 'order 5'",
    ],
}
ARGUMENTS = {"demo.py": ["--messages", "20000", "--kills", "1"]}


def test_every_example_is_listed_here() -> None:
    assert sorted(SHOWN) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_every_example_of_a_pipeline_is_run_by_a_test() -> None:
    tests = (ROOT / "tests" / "pipelines" / "test_examples.py").read_text()
    for path in (ROOT / "examples" / "pipelines").glob("*.toml"):
        assert f'"{path.stem}", shop)' in tests, path.name


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_shows_what_it_should(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / name), *ARGUMENTS.get(name, [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    for text in SHOWN[name]:
        assert text in done.stdout


def test_the_demo_ends_with_its_portal_if_a_terminal_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    terminal = Terminal(tmp_path, tmp_path / "state", environment())
    options = "--messages 2000 --kills 0 --no-spark --keep"
    command = f"{sys.executable} {ROOT / 'examples' / 'demo.py'} {options}"
    try:
        said = terminal.start(command, until="The portal: http")
        portal = re.search(r"The portal: (http://\S+)", said)
        assert portal, said
        with urllib.request.urlopen(portal[1], timeout=20) as page:
            assert b"<title>" in page.read()
    finally:
        assert terminal.close() == [0]
