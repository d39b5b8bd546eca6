"""`quiver cluster`, `doctor` and `bench` against brokers of their own."""

from pathlib import Path

import quivermq
from quivermq.cluster import OWN_LEVELS
from quivermq.wire import proto
from tests.cli.commands import error_line, quiver, quiver_json
from tests.cli.conftest import RunningUp, Serving, start_serve
from tests.client.brokers import BrokerThread
from tests.client.stand_in import StandIn


def test_status_shows_brokers_leader_and_health(cluster: RunningUp) -> None:
    done = quiver("cluster", "status", "--servers", cluster.servers)
    assert done.returncode == 0, done.stderr
    assert "led by broker" in done.stdout
    assert done.stdout.count("serving") == 3
    assert f"feature level {OWN_LEVELS.high}" in done.stdout
    assert f"all brokers run release {quivermq.__version__}" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_cluster_at_the_highest_level_is_not_upgraded(cluster: RunningUp) -> None:
    done = quiver("cluster", "upgrade", "--yes", "--servers", cluster.servers)
    assert "the highest" in done.stdout, done.stderr
    told = quiver_json("cluster", "upgrade", "--dry-run", "--servers", cluster.servers)
    assert told == {
        "before": OWN_LEVELS.high, "level": OWN_LEVELS.high, "levels": [], "dry_run": True,
    }  # fmt: skip
    far = quiver("cluster", "upgrade", "--to", "99", "--yes", "--servers", cluster.servers)
    assert f"broker 1 runs {quivermq.__version__}" in error_line(far, 1)


def test_status_skips_a_broker_outside_the_cluster_and_fails_without_another(
    cluster: RunningUp, tmp_path: Path
) -> None:
    with start_serve(tmp_path, "--peers", "8=127.0.0.1:1,9=127.0.0.1:2", node_id=7) as lonely:
        outside = lonely.ready["listen"]
        both = quiver_json("cluster", "status", "--servers", f"{outside},{cluster.servers}")
        assert [node["id"] for node in both["nodes"]] == [1, 2, 3]
        for form in ((), ("--json",)):
            alone = quiver("cluster", "status", "--servers", outside, *form)
            assert "not a member of a cluster" in error_line(alone, 1)
            assert alone.stdout == ""


def test_transfer_moves_a_leader(cluster: RunningUp) -> None:
    servers = cluster.servers
    quiver("topic", "create", "moved", "--servers", servers)
    (partition,) = quiver_json("topic", "describe", "moved", "--servers", servers)["partitions"]
    target = next(node for node in partition["replicas"] if node != partition["leader"])
    done = quiver("cluster", "transfer", "moved", "0", "--to", str(target), "--servers", servers)
    assert done.stdout == f"broker {target} leads moved partition 0\n", done.stderr
    (partition,) = quiver_json("topic", "describe", "moved", "--servers", servers)["partitions"]
    assert partition["leader"] == target


def test_a_balanced_cluster_has_nothing_to_move(cluster: RunningUp) -> None:
    moved = quiver("cluster", "rebalance", "--servers", cluster.servers)
    assert moved.stdout == "balanced: nothing is left to move\n", moved.stderr
    done = quiver_json("cluster", "rebalance", "--status", "--servers", cluster.servers)
    assert done["done"] is True


def test_a_broker_that_does_not_exist_cannot_be_removed(cluster: RunningUp) -> None:
    done = quiver("cluster", "remove", "77", "--yes", "--servers", cluster.servers)
    assert "77" in error_line(done, 1)


def test_a_cluster_grows_and_shrinks_while_it_keeps_its_messages(
    serving: Serving, tmp_path: Path
) -> None:
    first = serving.ready["listen"]
    quiver("topic", "create", "orders", "--partitions", "2", "--servers", first)
    for partition in ("0", "1"):
        quiver("produce", "orders", partition, "--partition", partition, "--servers", first)
    (tmp_path / "second").mkdir()
    with start_serve(tmp_path / "second", node_id=2) as second:
        added = quiver_json("cluster", "add", second.ready["listen"], "--servers", first)
        assert [node["id"] for node in added["nodes"]] == [1, 2]
        assert quiver_json("cluster", "rebalance", "--servers", first)["done"]
        partitions = quiver_json("topic", "describe", "orders", "--servers", first)["partitions"]
        assert sorted(partition["leader"] for partition in partitions) == [1, 2]
        removed = quiver("cluster", "remove", "2", "--yes", "--servers", first)
        assert removed.stdout == "broker 2 is removed; its process may be stopped\n"
    assert sorted(quiver("consume", "orders", "--servers", first).stdout.split()) == ["0", "1"]
    status = quiver_json("cluster", "status", "--servers", first)
    assert [node["id"] for node in status["nodes"]] == [1]


def test_a_broker_is_removed_when_a_majority_says_so_and_not_a_broker_that_is_behind() -> None:
    """Broker 1 never heard of broker 2; after two looks a majority confirms that it has left."""
    looks = 0

    def show(request: proto.Request) -> proto.Response:
        nonlocal looks
        looks += request.map.latest
        known = [1, 2] if request.map.latest and looks < 3 else [1]
        brokers = [proto.Broker(id=node, address=behind.address) for node in known]
        return proto.Response(map=proto.ClusterMap(cluster_id="c", node=1, brokers=brokers))

    with StandIn() as behind:
        behind.script("map", *[show] * 9)
        behind.script("remove_broker", lambda _: proto.Response(done=proto.Done()))
        progress = proto.Response(rebalance_progress=proto.RebalanceProgress(moves_left=1))
        behind.script("rebalance", *[lambda _: progress] * 9)
        done = quiver("cluster", "remove", "2", "--yes", "--servers", behind.address)
    assert done.stdout == "broker 2 is removed; its process may be stopped\n", done.stderr
    assert looks == 3


def test_the_doctor_reports_a_healthy_cluster(cluster: RunningUp, tmp_path: Path) -> None:
    findings = quiver_json("doctor", "--data-dir", tmp_path, "--servers", cluster.servers)
    checks = {finding["check"] for finding in findings}
    assert checks >= {"connection", "cluster", "leader", "version", "partitions", "files", "fsync"}
    assert not [finding for finding in findings if finding["level"] == "bad"]
    connections = [finding for finding in findings if finding["check"] == "connection"]
    assert len(connections) == 3, "every broker is asked, not only those named"


def test_the_doctor_names_a_broker_that_does_not_answer_and_exits_1() -> None:
    done = quiver("doctor", "--servers", "127.0.0.1:1", "--timeout", "300ms")
    assert done.returncode == 1
    assert "bad  127.0.0.1:1 does not answer" in done.stdout
    assert "quiver serve" in done.stdout
    assert "1 problem to fix" in done.stdout


def test_the_doctor_names_damage_and_what_to_do_about_it(tmp_path: Path) -> None:
    with start_serve(tmp_path) as broker:
        quiver("topic", "create", "orders", "--servers", broker.ready["listen"])
        words = "one\ntwo\nthree\n"
        quiver("produce", "orders", "--servers", broker.ready["listen"], stdin=words)
        broker.end()
    (segment,) = (tmp_path / "data/log/orders/0").glob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b"two", b"2 !"))
    with start_serve(tmp_path) as broker:
        # Until the broker knows its topics.
        for _ in range(30):
            done = quiver("doctor", "--servers", broker.ready["listen"])
            if "orders/0" in done.stdout:
                break
        _, said = broker.end()
    assert done.returncode == 1
    assert f"bad  orders/0: broker 1: log/orders/0/{segment.name} at byte" in done.stdout
    assert "stop the broker and restore the file" in done.stdout
    assert "quiver verify" in done.stdout
    assert "orders/0 is damaged: " in said
    # It runs: to start it is no advice.
    assert "start the brokers" not in done.stdout


def test_bench_measures_brokers_and_deletes_its_topic(cluster: RunningUp) -> None:
    figures = quiver_json("bench", "--count", "300", "--servers", cluster.servers)
    assert [figure["name"] for figure in figures] == [
        "produce_many", "producer.send", "read, Arrow", "read, messages", "produce, one at a time",
    ]  # fmt: skip
    assert figures[2]["messages"] == figures[3]["messages"] == 600
    assert figures[4]["p50_us"] <= figures[4]["p99_us"]
    topics = quiver_json("topic", "list", "--servers", cluster.servers)
    assert not [topic for topic in topics if topic["name"].startswith("bench-")]


def test_bench_starts_a_broker_of_its_own() -> None:
    done = quiver("bench", "latency", "--count", "20", "--fsync", "never")
    assert done.returncode == 0, done.stderr
    assert "measuring 1 broker in" in done.stderr
    assert "one at a time" in done.stdout


def test_brokers_with_the_same_number_are_named_at_once(tmp_path: Path) -> None:
    first, second = BrokerThread(tmp_path / "a"), BrokerThread(tmp_path / "b")
    try:
        told = error_line(quiver("cluster", "bootstrap", first.address, second.address), 1)
        added = quiver("cluster", "add", second.address, "--servers", first.address)
    finally:
        first.stop()
        second.stop()
    assert (
        f"the broker at {second.address} is number 1, and so is the one at {first.address}" in told
    )
    assert "--node-id" in told
    assert error_line(added, 1) == told
