"""A cluster of real brokers of the last release and of this one: forward, back, and raised."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quivermq
from quivermq.cluster import FEATURE_LEVEL_MAX, Level
from quivermq.errors import InvalidRequest
from quivermq.testing import Cluster
from quivermq.testing.trials import (
    ClientLoad,
    ConsumerLoad,
    TopicPartition,
    group_trial,
    lead_by,
    read_stored_copy,
    trial,
)
from quivermq.testing.trials.client_trial import TOPIC
from quivermq.testing.trials.consumer_trial import GROUP
from quivermq.testing.trials.consumer_trial import TOPIC as JOBS
from quivermq.wire import proto
from tests.cli.commands import environment, quiver
from tests.upgrades.releases import packages, release_of, unpacked_package
from tests.upgrades.test_refusals import files_of

FAST = {"tick_ms": 50}
LAST = packages()[-1]
BEFORE = int(FEATURE_LEVEL_MAX) - 1

OLD_CLIENT = """
import sys, quivermq
assert quivermq.__version__ == sys.argv[2], quivermq.__version__
with quivermq.connect(sys.argv[1]) as client:
    client.create_topic("by-an-old-client")
    client.produce_many("by-an-old-client", [b"%d" % n for n in range(50)])
    got = client.poll("by-an-old-client", "readers", max_messages=50)
    client.ack(got)
    client.alter_topic("by-an-old-client", max_deliveries=7)
    print(len(got), client.cluster().level)
"""


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_package(LAST, tmp_path_factory.mktemp("release"))


@pytest.fixture
def cluster(last_release: Path) -> Iterator[Cluster]:
    """Three brokers of the last release."""
    made = Cluster(settings=FAST)
    for node in made.nodes.values():
        node.code = last_release
    with made:
        yield made


def roll(cluster: Cluster, node: int, code: Path | None, *loads: ClientLoad | ConsumerLoad) -> None:
    """One broker goes over to another release, and everything goes on."""
    cluster.nodes[node].change_release(code)
    cluster.wait_ready()
    wait_registered(cluster)
    for load in loads:
        load.wait_progress()


def wait_registered(cluster: Cluster) -> None:
    """A broker that serves may still be about to register."""
    wanted = {
        node.id: release_of(LAST) if node.code else quivermq.__version__
        for node in cluster.nodes.values()
    }
    with cluster.connect() as client:
        cluster.wait_until(
            lambda: {node.id: node.version for node in client.cluster().nodes} == wanted,
            f"the brokers do not run {wanted}",
        )


def test_a_cluster_rolls_forward_and_back_and_is_raised_under_load_and_loses_nothing(
    cluster: Cluster, last_release: Path
) -> None:
    with trial(cluster) as load, group_trial(cluster) as consumers, cluster.connect() as client:
        wait_registered(cluster)
        roll(cluster, 1, None, load, consumers)
        # Both ways: what a new leader says to old followers, and an old leader to new ones.
        for leader in (1, 2):
            lead_by(cluster, client, TOPIC, 0, leader)
            lead_by(cluster, client, JOBS, 0, leader)
            client.transfer(None, to=leader)
            load.wait_progress()
            consumers.wait_progress()
            with pytest.raises(InvalidRequest, match=f"broker 2 runs {release_of(LAST)}"):
                client.upgrade_cluster()
            with pytest.raises(InvalidRequest, match=f"feature level {FEATURE_LEVEL_MAX} needs"):
                client.alter_topic(JOBS, group_idle_retention=60)
        roll(cluster, 2, None)
        roll(cluster, 3, None, load, consumers)
        assert client.cluster().level == BEFORE
        with pytest.raises(InvalidRequest, match="quiver cluster upgrade"):
            client.alter_topic(JOBS, group_idle_retention=60)
        for node in (1, 2, 3):
            roll(cluster, node, last_release)
        load.wait_progress()
        consumers.wait_progress()
        for node in (3, 2, 1):
            roll(cluster, node, None)
        raise_level(cluster)
        load.wait_progress()
        consumers.wait_progress()
        wait_level(cluster)
        check_old_client(cluster, last_release)
        check_refused(cluster, last_release)


def wait_level(cluster: Cluster) -> None:
    """Whoever is asked may not have heard of it yet."""

    def do_all_know() -> bool:
        answers = []
        for node in cluster.running:
            with cluster.direct(node.id) as broker:
                query = proto.Request(map=proto.MapQuery(brokers_only=True))
                answers.append(broker.ask(query).response.map.level)
        return set(answers) == {FEATURE_LEVEL_MAX}

    cluster.wait_until(do_all_know, "not all brokers know the level")


def raise_level(cluster: Cluster) -> None:
    """As people do."""

    def is_told() -> bool:
        # Not while replicas are behind: that comes first.
        told = quiver("cluster", "status", "--servers", cluster.servers)
        return f"every broker knows feature level {FEATURE_LEVEL_MAX}" in told.stderr

    cluster.wait_until(is_told, "nobody is told that the level can be raised")
    dry = quiver("cluster", "upgrade", "--dry-run", "--servers", cluster.servers)
    assert Level(FEATURE_LEVEL_MAX).brings in dry.stdout, dry.stderr
    assert "nothing was changed" in dry.stdout
    done = quiver("cluster", "upgrade", "--yes", "--servers", cluster.servers)
    assert f"the cluster is at feature level {FEATURE_LEVEL_MAX}\n" in done.stdout, done.stderr


def check_old_client(cluster: Cluster, code: Path) -> None:
    """No level binds clients."""
    done = subprocess.run(
        [sys.executable, "-c", OLD_CLIENT, cluster.servers, release_of(LAST)],
        env=environment(PYTHONPATH=str(code)),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout.split() == ["50", str(FEATURE_LEVEL_MAX)], done.stderr


def check_refused(cluster: Cluster, code: Path) -> None:
    """The last release does not start on what this one has written, and leaves it as it is."""
    node = cluster.nodes[3]
    cluster.wait_until(
        lambda: f"node 3 is at feature level {FEATURE_LEVEL_MAX}" in node.log_text(),
        "node 3 does not learn of the level",
    )
    node.stop()
    before = files_of(node.data_dir)
    node.code = code
    node.launch()
    said = node.wait_refused()
    assert f"use release {Level(FEATURE_LEVEL_MAX).release} or later" in said
    assert files_of(node.data_dir) == before
    node.code = None
    node.start()
    cluster.wait_ready()


def test_a_broker_of_the_last_release_is_refused_after_the_level_was_raised(
    cluster: Cluster, last_release: Path
) -> None:
    """And idle groups are forgotten from the new level on only."""
    with cluster.connect() as client:
        client.create_topic("orders")
        client.produce_many("orders", [b"1", b"2"])
        client.ack(client.poll("orders", GROUP))
        client.commit("orders", "reader", 0, 1)
        cluster.stop()
        for node in cluster.nodes.values():
            node.code = None
        cluster.start()
        wait_registered(cluster)
        away = cluster.nodes[3]
        away.kill()
        # It counts as what it ran last, so it is not in the way.
        assert client.topic("orders").group_idle_retention is None
        assert client.upgrade_cluster().level == FEATURE_LEVEL_MAX
        wait_level(cluster)
        assert client.topic("orders").group_idle_retention == 7 * 24 * 3600
        client.alter_topic("orders", group_idle_retention=1)
        check_not_let_in(cluster, last_release)
        away.start()
        cluster.wait_until(
            lambda: {group.name for group in client.groups("orders")} == {"reader"},
            "the group is not forgotten",
        )
        lead_by(cluster, client, "orders", 0, 3)
        assert [group.name for group in client.groups("orders")] == ["reader"]
        assert len(client.poll("orders", GROUP)) == 2


def check_not_let_in(cluster: Cluster, code: Path) -> None:
    """Its directory does not say the level yet: the others do. So it opens its logs, as after any
    end, and adds nothing to them."""
    node = cluster.nodes[3]
    before = read_stored_copy(cluster, 3, TopicPartition("orders", 0))
    assert before.batches
    node.code = code
    node.launch()
    said = node.wait_refused()
    assert f"use release {Level(FEATURE_LEVEL_MAX).release} or later" in said
    assert read_stored_copy(cluster, 3, TopicPartition("orders", 0)) == before
    node.code = None


def test_an_empty_broker_of_the_last_release_cannot_join_a_raised_cluster(
    last_release: Path,
) -> None:
    with Cluster(1, settings=FAST) as cluster:
        node = cluster.add_node(start=False)
        node.code = last_release
        node.launch()
        assert f"use release {Level(FEATURE_LEVEL_MAX).release} or later" in node.wait_refused()
        node.code = None
        node.start()
        cluster.wait_ready()
