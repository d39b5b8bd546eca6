"""The fixtures as a project finds them that has the package installed: by the entry point."""

import os
import tomllib
from pathlib import Path

import psutil
import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

SHARING = """
    import os
    from pathlib import Path
    import quivermq

    def note(broker, topic=""):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        with Path("notes").open("a") as notes:
            notes.write(f"{worker} {broker.nodes[1].pid} {broker.nodes[1].data_dir} {topic}\\n")

    def test_one(quiver, quiver_topic, quiver_broker):
        note(quiver_broker, quiver_topic)
        assert quiver.topic(quiver_topic).partitions[0].end_offset == 0
        quiver.produce(quiver_topic, b"an order")
        (message,) = quiver.poll(quiver_topic, group="billing", wait=10)
        message.reject("it has a topic of dead letters too")
        while not quiver.dead_letters(quiver_topic):
            pass

    def test_two(quiver, quiver_topic, quiver_broker):
        note(quiver_broker, quiver_topic)
        assert list(quiver.read(quiver_topic)) == []
        quiver.delete_topic(quiver_topic)

    def test_three(quiver_broker):
        note(quiver_broker)
        with quivermq.connect(quiver_broker.servers) as client:
            client.ping()

    def test_four(quiver, quiver_broker):
        note(quiver_broker)
        assert [topic.name for topic in quiver.topics()] == []
        quiver.close()
"""

DISTURBING = """
    import pytest

    PIDS = []

    @pytest.fixture(scope="session")
    def quiver_settings(quiver_settings):
        return {**quiver_settings, "tick_ms": 50}

    @pytest.fixture(autouse=True)
    def _all_run(quiver_cluster):
        PIDS.append([node.pid for node in quiver_cluster.nodes.values()])
        assert len(quiver_cluster.running) == 3
        assert all(node.settings["tick_ms"] == 50 for node in quiver_cluster.nodes.values())

    def test_a_broker_is_killed_and_another_paused(quiver_cluster):
        quiver_cluster.nodes[2].kill()
        quiver_cluster.nodes[3].pause()

    def test_they_run_again(quiver_cluster):
        (first, *_), (again, killed, paused) = PIDS[0], PIDS[1]
        assert first == again and killed != PIDS[0][1] and paused == PIDS[0][2]
        with quiver_cluster.connect() as client:
            client.create_topic("orders", replication=3)
            client.produce("orders", b"an order")

    def test_that_fails(quiver_cluster):
        assert quiver_cluster.servers == ""
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of another team, on a machine where this package is installed as it is here."""
    installed = pytester.path / "installed"
    described = installed / "quivermq_as_it_is_here-0.dist-info"
    described.mkdir(parents=True)
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {place}" for name, place in metadata["entry-points"]["pytest11"].items()]
    described.joinpath("entry_points.txt").write_text("[pytest11]\n" + "\n".join(lines))
    described.joinpath("METADATA").write_text("Name: quivermq-as-it-is-here\nVersion: 0\n")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), before, str(ROOT / "src")]))
    # Plugins of other packages that are installed here too: a second of imports each.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis -p no:hypothesispytest")
    return pytester


def notes_of(project: pytest.Pytester) -> list[list[str]]:
    return [line.split(" ") for line in (project.path / "notes").read_text().splitlines()]


def check_nothing_is_left(notes: list[list[str]]) -> None:
    for _, pid, folder, _ in notes:
        assert not psutil.pid_exists(int(pid))
        assert not Path(folder).parents[1].exists()


def test_each_worker_has_a_broker_and_each_test_a_topic_that_is_gone_afterwards(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(SHARING)
    project.runpytest_subprocess("-n", "2", "--dist", "each").assert_outcomes(passed=8)
    notes = notes_of(project)
    brokers = {worker: pid for worker, pid, *_ in notes}
    assert set(brokers) == {"gw0", "gw1"}
    assert brokers["gw0"] != brokers["gw1"]
    assert all(brokers[worker] == pid for worker, pid, *_ in notes)
    topics = sorted(topic for *_, topic in notes if topic)
    assert len(set(topics)) == 4
    assert [topic.rpartition("-")[0] for topic in topics] == ["one", "one", "two", "two"]
    check_nothing_is_left(notes)


def test_brokers_that_a_test_disturbed_run_again_and_a_failure_shows_their_logs(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(DISTURBING)
    result = project.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(passed=2, failed=1)
    shown = result.stdout.str()
    assert "logs of QuiverMQ's brokers" in shown
    assert all(f"node {number}" in shown.partition("logs of Quiver")[2] for number in (1, 2, 3))


def test_a_run_that_uses_no_fixture_imports_neither_arrow_nor_brokers(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(
        """
        import sys

        def test_that_is_about_something_else(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("quiver")
            loaded = {name for name in sys.modules if name.startswith(("quivermq", "pyarrow"))}
            plugin = "quivermq.testing.pytest_plugin"
            assert loaded == {"quivermq", "quivermq.errors", "quivermq.testing", plugin}
        """
    )
    project.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)
