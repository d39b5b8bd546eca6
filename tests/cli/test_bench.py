"""The charts of `quiver bench`, and its progress on a terminal."""

import pytest
from rich.progress import Progress

from quivermq.cli import bench
from quivermq.cli.bench_chart import HEIGHT, bars, latencies, over_time
from tests.cli.commands import quiver
from tests.cli.terminal import Terminal
from tests.client.brokers import BrokerThread


@pytest.fixture
def servers(broker: BrokerThread) -> str:
    return broker.address


def test_bars_are_as_long_as_their_figures() -> None:
    long, half, none = bars([("produce", 2_000_000.0), ("read", 1_000_000.0), ("idle", 0.0)], 60)
    assert long.startswith("produce  █")
    assert long.endswith("█ 2.0M/s")
    assert half.count("█") == long.count("█") // 2
    assert none == "idle      0/s"
    assert all(len(each) <= 60 for each in (long, half, none))


def test_a_rate_over_time_shows_when_it_was_slow() -> None:
    fast = [(0.1 * n, 1_000 * n) for n in range(1, 11)]
    slow = [(1.0 + 0.1 * n, 10_000 + 100 * n) for n in range(1, 11)]
    lines = over_time([*fast, *slow], 49)
    assert len(lines) == HEIGHT + 2
    assert all(len(line) <= 49 for line in lines)
    top = lines[0].partition("┤")[2]
    assert lines[0].startswith("  10.0k ┤")
    assert top == "█" * 20, "the first half, and no more"
    # A tenth of the height: less than one of six lines.
    assert lines[HEIGHT - 1].endswith("▅" * 20)
    assert lines[-1].split() == ["0", "s", "2.0", "s"]


@pytest.mark.parametrize("points", [[], [(1.0, 5)], [(0.1 * n, 0) for n in range(20)]])
def test_too_little_to_see_is_no_chart(points: list[tuple[float, int]]) -> None:
    assert over_time(points, 60) == []


def test_latencies_are_counted_by_ranges_without_holes() -> None:
    lines = latencies([60.0, 90.0, 100.0, 350.0, 3e6], 60)
    assert lines[0].startswith("   to 100 µs  █")
    assert lines[0].endswith(" 3")
    assert lines[1].split() == ["to", "200", "µs", "0"]
    assert lines[3].endswith(" 1")
    assert lines[-1].startswith("    over 1 s  █")
    assert len(lines) == 22
    assert latencies([], 60) == []


def test_a_measurement_adds_nothing_to_the_chart_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "_REPORT_SECONDS", 0.0)
    meter = bench.Meter(Progress(disable=True))
    meter.show("first", 10)
    meter.begin()
    meter.report(5)
    meter.report(10)
    first = meter.points
    meter.show("second", 10)
    meter.report(1)
    assert [done for _, done in first] == [5, 10]
    assert [done for _, done in meter.points] == [1]


def test_a_terminal_sees_progress_then_the_table_and_charts(servers: str) -> None:
    arguments = ("bench", "--count", "60000", "--servers", servers)
    with Terminal(*arguments, columns=100, lines=70) as terminal:
        assert terminal.wait_for_end() == 0
        shown = terminal.text
    assert "produce_many" in shown
    assert "\nmessages/s\n" in shown
    assert "latency of a produce\n" in shown
    assert "█" in shown
    # While it ran, and gone at the end.
    assert b"/60000" in terminal.written
    assert "/60000" not in shown


def test_a_pipe_gets_the_table_alone(servers: str) -> None:
    done = quiver("bench", "latency", "--count", "20", "--servers", servers)
    assert done.returncode == 0, done.stderr
    assert "one at a time" in done.stdout
    assert "█" not in done.stdout
    assert "█" not in done.stderr
