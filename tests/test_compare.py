"""The comparison with other systems: its figures, goals, tables and charts, and a short run."""

import asyncio
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest

from benchmarks.compare.__main__ import parser, plan_of
from benchmarks.compare.charts import PANEL_HEIGHT, Scale, draw_all, short
from benchmarks.compare.figures import OURS, SYSTEMS, Cell, Conditions, Figure, Run, figure_of
from benchmarks.compare.goals import GOALS, KAFKA, NATS, REDIS, TIMES, judge
from benchmarks.compare.pages import (
    BEGIN,
    CHARTS,
    END,
    README,
    RESULTS_FILE,
    RESULTS_PAGE,
    ROOT,
    goals_table,
    pages,
    readme_region,
    results_region,
    rewrite,
    with_region,
)  # fmt: skip
from benchmarks.compare.redis_streams import Redis
from benchmarks.compare.rounds import WORKS, Plan, run, tasks_of
from benchmarks.compare.system import Arrivals, NotInstalled, Sample, family

OWN = ("poll", "default poll", "handler", "arrow", "sticky")
BATCHES = (1, 10, 100, 1_000, 10_000)


def made_up(ours: float = 1.0) -> Run:
    """A run with every cell; rates of QuiverMQ are `ours` times Kafka's, its latencies as well."""
    found = Run(
        {"date": "1 May 2026", "commit": "abc", "machine": "2 cores", "how": "Quickly."},
        {system: f"{system} 1.0" for system in SYSTEMS},
        ["NATS JetStream, one node: too old"],
    )
    strength = dict(zip(SYSTEMS, (ours, 0.1, 0.05, 0.01, 1.0), strict=True))
    for nodes in (1, 3):
        for fsync in (False, True):
            for size in (100, 1_000):
                for work, batch in works_of(size):
                    for system in SYSTEMS if work not in OWN else SYSTEMS[:1]:
                        factor = strength[system]
                        cell = Cell(system, nodes, fsync, size, work, batch)
                        if cell.is_latency:
                            figure = Figure(10.0, 20.0, 30.0, 250.0 * factor, 900.0 * factor)
                        else:
                            figure = Figure(1e6 * factor, 20.0, 30.0)
                        found.figures[cell] = figure
    return found


def works_of(size: int) -> Iterator[tuple[str, int]]:
    for batch in BATCHES:
        yield "produce", batch
        yield "consume", batch
    yield from (("lone", 0), ("push", 0))
    if size == 100:
        yield from (("clients", 64), ("groups", 100), ("default poll", 0), ("handler", 0))
        yield "arrow", 10_000
        yield from (("poll", batch) for batch in BATCHES)
        yield from (("sticky", batch) for batch in (1_000, 10_000))


def sample(messages: int, seconds: float, *laps: float) -> Sample:
    return Sample(messages, seconds, messages * 2e-6, messages * 3e-6, laps)


def test_a_figure_is_the_median_of_its_rounds() -> None:
    figure = figure_of([sample(100, 1.0), sample(100, 0.5), sample(100, 0.1)])
    assert figure.per_second == pytest.approx(200)
    assert (figure.broker_us, figure.client_us) == pytest.approx((2.0, 3.0))
    assert figure.p50_us is None


def test_latencies_are_quantiles_of_a_round_and_medians_over_rounds() -> None:
    laps = [n / 1e6 for n in range(1, 101)]
    rounds = [sample(100, 1.0, *[lap * factor for lap in reversed(laps)]) for factor in (1, 2, 9)]
    figure = figure_of(rounds)
    assert (figure.p50_us, figure.p99_us) == pytest.approx((102, 200))


def test_a_round_that_moved_nothing_does_not_count() -> None:
    assert figure_of([sample(0, 1.0), sample(50, 1.0)]).per_second == 50


def test_turns_of_one_round_are_joined() -> None:
    both = sample(1, 0.5, 0.5).joined(sample(2, 0.25, 0.1, 0.15))
    assert (both.messages, both.seconds, both.laps) == (3, 0.75, (0.5, 0.1, 0.15))


def test_a_run_is_read_as_it_was_saved(tmp_path: Path) -> None:
    found = made_up()
    found.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == found
    found.figures[Cell(OURS, 1, False, 100, "lone")] = Figure(1.0, 2.0, 3.0, 123.456, 1 / 3)
    found.save(tmp_path / "run.json")
    rounded = Run.load(tmp_path / "run.json").figures[Cell(OURS, 1, False, 100, "lone")]
    assert (rounded.p50_us, rounded.p99_us) == (123.5, 0.3333)


def test_the_best_of_the_others_is_the_fastest_one() -> None:
    found = made_up(ours=2.0)
    rate = found.best(Cell(OURS, 1, False, 100, "produce", 10))
    assert rate is not None
    assert (rate.peer, rate.ratio, rate.times_better) == (KAFKA, 2.0, 2.0)
    lone = found.best(Cell(OURS, 1, False, 100, "lone"))
    assert lone is not None
    assert (lone.peer, lone.theirs) == ("RabbitMQ", 2.5)
    assert lone.times_better == pytest.approx(2.5 / 500)
    assert found.best(Cell(OURS, 1, False, 100, "produce", 7)) is None
    assert found.best(Cell(OURS, 1, False, 100, "lone"), peers=()) is None


def test_work_of_ours_alone_is_compared_at_the_same_batch_size() -> None:
    found = made_up(ours=2.0)
    found.figures[Cell(KAFKA, 1, False, 100, "consume", 1)] = Figure(4e6, 1.0, 1.0)
    handler = found.best(Cell(OURS, 1, False, 100, "handler"))
    assert handler is not None
    assert (handler.peer, handler.ratio) == (KAFKA, 0.5)
    polled = found.best(Cell(OURS, 1, False, 100, "poll", 1_000))
    assert polled is not None
    assert (polled.peer, polled.ratio) == (KAFKA, 2.0)
    del found.figures[Cell(KAFKA, 1, False, 100, "consume", 1)]
    handler = found.best(Cell(OURS, 1, False, 100, "handler"))
    assert handler is not None
    assert handler.peer == REDIS


def test_every_goal_is_judged_by_a_whole_run_and_by_no_other() -> None:
    assert len({goal.title for goal in GOALS}) == len(GOALS)
    assert all(judged.found for judged in judge(made_up()))
    assert {judged.verdict for judged in judge(Run())} == {"not measured"}


def test_goals_of_rates_are_lower_bounds_and_goals_of_latencies_upper_ones() -> None:
    quick, slow = (
        {judged.goal.title: judged.verdict for judged in judge(made_up(ours))}
        for ours in (50.0, 0.0001)
    )
    rates = [goal.title for goal in GOALS if not goal.is_at_most]
    assert len(rates) >= 15
    assert {quick[title] for title in rates} == {"met"}
    assert {slow[title] for title in rates} == {"MISSED"}
    latencies = [goal.title for goal in GOALS if goal.is_at_most and "p50" in goal.title]
    assert len(latencies) == 9
    assert {quick[title] for title in latencies} == {"MISSED"}
    assert {slow[title] for title in latencies} == {"met"}


def test_a_goal_compares_with_the_peers_and_the_durability_that_it_names() -> None:
    found = made_up(ours=2.0)
    found.figures[Cell(KAFKA, 1, True, 100, "produce", 1)] = Figure(5e9, 1.0, 1.0)
    found.figures[Cell(KAFKA, 1, True, 100, "lone")] = Figure(1.0, 1.0, 1.0, 1000.0, 1000.0)
    found.figures[Cell(NATS, 3, False, 100, "lone")] = Figure(1.0, 1.0, 1.0, 400.0, 400.0)
    found.figures[Cell(REDIS, 1, False, 100, "consume", 10)] = Figure(4e6, 1.0, 1.0)
    measured = {one.goal.title: one.found for one in judge(found) if one.found}
    kafka = measured["a call a message, to Kafka, with fsync, Kafka without"]
    assert (kafka.measured, kafka.theirs) == (2.0, 1e6)
    assert measured["lone produce p50, to Kafka, with fsync"].measured == 0.5
    three = next(one for title, one in measured.items() if title.startswith("three nodes"))
    assert (three.measured, three.peer) == (1.25, NATS)
    handler = measured["subscribe with a handler a message, to Redis at its best batch"]
    assert handler.measured == 0.5
    assert measured["poll of 10 and ack: processor time of the broker"].measured == 200
    assert measured["lone produce: processor time of the blocking client"].measured == 30


def test_losses_come_first_and_the_worst_of_them_at_the_top() -> None:
    found = made_up(ours=0.5)
    found.figures[Cell(OURS, 1, False, 100, "produce", 10)] = Figure(1e3, 1.0, 1.0)
    region = results_region(found)
    places = [region.index(f"### {title}") for title in ("Where QuiverMQ loses", "Goals", "Charts")]
    assert places == sorted(places)
    assert places[-1] < region.index("### One node, without fsync") < region.index("### Left out")
    losses = region[places[0] : places[1]].splitlines()
    rows = [line for line in losses if line.startswith("| ")][2:]
    assert "produce, 10 a call" in rows[0]
    assert f"1000 {TIMES} worse" in rows[0]
    factors = [float(re.findall(rf"([\d.]+) {TIMES} worse", row)[0]) for row in rows]
    assert factors == sorted(factors, reverse=True)


def test_a_run_without_losses_says_so() -> None:
    found = made_up(ours=2.0)
    for cell in [cell for cell in found.figures if cell.is_latency]:
        del found.figures[cell]
    losses = results_region(found).partition("### Where QuiverMQ loses")[2]
    assert re.match(r"\s+In none of \d+ rows\.", losses)


def test_the_table_of_the_readme_shows_lost_rows_first() -> None:
    found = made_up(ours=2.0)
    rows = [line for line in readme_region(found).splitlines() if line.startswith("| ")][2:]
    lost = ["**" in row for row in rows]
    assert lost == sorted(lost, reverse=True)
    assert any(lost)
    assert not all(lost)
    assert f"**0.005 {TIMES}** RabbitMQ (500 µs)" in rows[0]
    wanted = f"| produce, 100 a call | 2.0 {TIMES} Apache Kafka | "
    assert any(row.startswith(wanted) for row in rows)


def test_missing_systems_leave_holes_and_not_zeros() -> None:
    found = made_up()
    for cell in [cell for cell in found.figures if cell.system == REDIS and cell.fsync]:
        del found.figures[cell]
    region = results_region(found)
    table = region.partition("### One node, fsync")[2]
    row = next(line for line in table.splitlines() if line.startswith("| produce, 10 a call"))
    assert row.split(" | ")[1:4] == ["1,000,000", "", "50,000"]
    assert "**MISSED**" in goals_table(made_up(ours=0.01))


def test_a_region_is_replaced_and_nothing_around_it() -> None:
    page = f"before\n{BEGIN}\nold \\1\n{END}\nafter\n"
    once = with_region(page, "new \\1 text")
    assert once == f"before\n{BEGIN}\nnew \\1 text\n{END}\nafter\n"
    assert with_region(once, "new \\1 text") == once
    for wrong in ("no marks", page + page):
        with pytest.raises(ValueError, match="one region"):
            with_region(wrong, "new")


def test_pages_are_rewritten_from_a_run(tmp_path: Path) -> None:
    for path in (README, RESULTS_PAGE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / CHARTS).mkdir()
    (tmp_path / CHARTS / "of-an-earlier-run.svg").touch()
    found = made_up()
    rewrite(found, tmp_path)
    assert disagreeing(found, tmp_path) == []
    assert "1 May 2026" in (tmp_path / README).read_text()
    assert {path.name for path in (tmp_path / CHARTS).iterdir()} == set(draw_all(found))
    found.figures[Cell(OURS, 1, False, 100, "produce", 100)] = Figure(7.0, 1.0, 1.0)
    assert disagreeing(found, tmp_path) == [README.name, RESULTS_PAGE.name, "produce-1.svg"]


def test_readme_results_and_charts_agree_with_the_last_run() -> None:
    file = ROOT / RESULTS_FILE
    if not file.exists():
        # Until there is one, the pages have their regions, and no charts.
        assert not list((ROOT / CHARTS).glob("*"))
        pages(made_up(), ROOT)
        return
    assert disagreeing(Run.load(file), ROOT) == [], "python -m benchmarks.compare --read --write"


def disagreeing(found: Run, root: Path) -> list[str]:
    texts = pages(found, root).items()
    return sorted(
        path.name for path, text in texts if not path.exists() or path.read_text() != text
    )


def test_charts_are_well_formed_for_both_schemes_and_inside_of_their_frame() -> None:
    charts = draw_all(made_up(ours=3.0))
    kinds = ("produce", "consume", "latency", "cpu")
    assert set(charts) == {f"{kind}-{nodes}.svg" for kind in kinds for nodes in (1, 3)}
    for name, chart in charts.items():
        root = ET.fromstring(chart)
        width, height = (float(side) for side in root.attrib["viewBox"].split()[2:])
        assert "prefers-color-scheme:dark" in chart
        labels = [text.text for text in root.findall(".//{*}text")]
        assert set(SYSTEMS) <= set(labels)
        for element in root.iter():
            for side, limit in (("x", width), ("y", height)):
                for attribute in (side, f"c{side}", f"{side}1", f"{side}2"):
                    if attribute in element.attrib:
                        assert 0 <= float(element.attrib[attribute]) <= limit, name
        ends = [line for line in root.findall(".//{*}text") if line.get("text-anchor") == "start"]
        for line in ends:
            # Letters of 12 px are 6.5 px wide on average, more or less.
            assert float(line.attrib["x"]) + 5.5 * len(line.text or "") <= width + 20, line.text


def test_more_is_higher_in_a_chart_of_rates() -> None:
    found = made_up(ours=2.0)
    root = ET.fromstring(draw_all(found)["produce-1.svg"])
    heights = {
        kind: {float(point.split(",")[1]) for point in line.attrib["points"].split()}
        for line in root.findall(".//{*}polyline")
        for kind in [line.attrib["class"]]
    }
    order = [min(heights[f"curve s{SYSTEMS.index(name)}"]) for name in (OURS, KAFKA, REDIS, NATS)]
    assert order == sorted(order)
    assert len(set(order)) == 4


def test_axes_have_whole_decades_around_all_values() -> None:
    scale = Scale.around([30, 4_000], 0, PANEL_HEIGHT)
    assert [label for _, label in scale.ticks()] == ["10", "100", "1 k", "10 k"]
    assert scale.at(10) == 0
    assert scale.at(10_000) == pytest.approx(PANEL_HEIGHT)
    assert Scale.around([100], 0, 1).high == 3
    assert [short(value) for value in (0.5, 999, 1_230_000)] == ["0.5", "999", "1.23 M"]


def test_a_run_without_one_kind_of_work_draws_the_others() -> None:
    found = made_up()
    for cell in [cell for cell in found.figures if cell.work != "lone" or cell.nodes == 3]:
        del found.figures[cell]
    assert set(draw_all(found)) == {"latency-1.svg"}


def test_arguments_change_a_plan() -> None:
    assert plan_of(parser().parse_args([])) == Plan()
    text = "--quick --systems QuiverMQ --fsync yes,no --sizes 7 --works lone,own --rounds 3"
    plan = plan_of(parser().parse_args(text.split()))
    assert (plan.systems, plan.fsync, plan.sizes) == (("QuiverMQ",), (True, False), (7,))
    assert (plan.works, plan.rounds, plan.nodes) == (("lone", "own"), 3, (1,))
    for wrong in ("--systems Kafka4", "--works sleep", "--fsync maybe"):
        with pytest.raises(SystemExit):
            parser().parse_args(wrong.split())


def test_work_that_needs_messages_comes_after_what_makes_them() -> None:
    plan = Plan()
    works = [(task.work, task.batch) for task in tasks_of(plan, Conditions(1, True), 100)]
    assert works[:10] == [(work, batch) for work in ("produce", "consume") for batch in BATCHES]
    assert ("clients", 64) in works
    assert ("groups", 100) in works
    others = {task.work for task in tasks_of(plan, Conditions(3, True), 1_000)}
    assert others == {"produce", "consume", "lone", "push"}
    kinds = {task.kind for task in tasks_of(plan, Conditions(1, True), 100)}
    assert kinds == set(WORKS)


def test_arrivals_are_counted_from_where_they_are_expected() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        arrivals.note(5)
        arrivals.expect(2)
        waiting = asyncio.create_task(arrivals.wait())
        arrivals.note()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        arrivals.note()
        await waiting
        arrivals.expect(-1)
        await arrivals.wait()

    asyncio.run(scenario())


class Burner(Redis):
    """A system whose server is a child of what is started, and uses a processor."""

    needs = ()

    def start(self) -> None:
        burn = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
        self.spawn("sh", "-c", f"{sys.executable} -c '{burn}'; true")
        wait_until(lambda: len(family(self.pids()[0])) > 1)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_processor_time_is_that_of_servers_and_their_children() -> None:
    with Burner(fsync=False) as system:
        watch = system.watch()
        wait_until(lambda: watch.stop(1).broker_cpu_s >= 0.1)
    assert len(system._watched) == 2
    wait_until(lambda: not any(map(is_alive, system._watched)))


class Broken(Burner):
    """One whose server says why it ends."""

    def start(self) -> None:
        self.spawn("sh", "-c", f"echo no; echo {self.folder}/conf: too old; exit 1")
        self.wait_for(1)


def test_a_server_that_ends_at_once_is_quoted_without_the_name_of_its_folder() -> None:
    with pytest.raises(NotInstalled, match="does not run here: conf: too old"):
        Broken(fsync=False).__enter__()


def test_a_server_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    system = Redis(fsync=False)
    with pytest.raises(NotInstalled, match="no-such-server is not installed"):
        system.spawn("no-such-server")
    monkeypatch.setattr(Redis, "needs", ("no_such_package",))
    with pytest.raises(NotInstalled, match="no_such_package is not installed"):
        system.__enter__()


def test_a_short_run_measures_all_work_and_names_who_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUIVER_KAFKA_JARS", raising=False)
    plan = Plan(
        systems=(KAFKA, OURS), nodes=(1,), fsync=(True,), sizes=(100,), batches=(1, 10), rounds=2,
        seconds=0.03, laps=8, warm_up=0.0, clients=3, groups=3,
    )  # fmt: skip
    found = run(plan)
    assert len(found.left_out) == 1
    assert found.left_out[0].startswith("Apache Kafka, one node, fsync")
    assert found.versions[OURS].startswith("QuiverMQ ")
    wanted = {(task.work, task.batch) for task in tasks_of(plan, Conditions(1, True), 100)}
    assert {(cell.work, cell.batch) for cell in found.figures} == wanted
    assert {cell[:4] for cell in found.figures} == {(OURS, 1, True, 100)}
    for cell, figure in found.figures.items():
        assert figure.per_second > 0, cell
        assert figure.client_us > 0, cell
        assert (figure.p50_us is not None) == cell.is_latency
    assert results_region(found)
