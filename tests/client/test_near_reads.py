"""Clients read from replicas of their own zone, and see what leaders say there is."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import quivermq
from quivermq.client import ConnectOptions
from quivermq.client.cluster_map import ClusterMap
from quivermq.client.router import Router
from quivermq.client.transport import run
from quivermq.errors import Corrupt, InvalidRequest, NotLeader, OffsetOutOfRange
from quivermq.wire import proto
from tests.client.stand_in import DROP, HANG, Action, StandIn
from tests.client.virtual_transport import VirtualTransport

VALUES = [b"%04d" % number for number in range(1_000)]
ZONES = {1: "north", 2: "south", 3: "east"}


@pytest.fixture
def brokers() -> Iterator[dict[int, StandIn]]:
    """Broker 1 leads, in zone north; 2 and 3 follow, in south and east."""
    with ExitStack() as started:
        found = {node: started.enter_context(StandIn(node=node)) for node in ZONES}
        for one in found.values():
            one.addresses = {node: other.address for node, other in found.items()}
            one.zones = ZONES
            one.leaders, one.logs = {0: 1}, found[1].logs
        with quivermq.connect(found[1].address, zone="") as client:
            client.produce_many("t", VALUES)
        yield found


def fetches(brokers: dict[int, StandIn]) -> set[int]:
    return {node for node, one in brokers.items() if one.count("fetch")}


@pytest.mark.parametrize(
    ("zone", "asked"),
    [("south", {2}), ("east", {3}), ("north", {1}), ("nowhere", {1}), ("", {1})],
)
def test_a_read_goes_to_the_zone_of_the_client_or_to_the_leader(
    zone: str, asked: set[int], brokers: dict[int, StandIn]
) -> None:
    with quivermq.connect(brokers[1].address, zone=zone) as client:
        assert [message.value for message in client.read("t")] == VALUES
        assert len(list(client.read_range("t", 0, 100, 900))) == 800
        assert fetches(brokers) == asked
        assert not brokers[2].count("find_offset"), "only the leader knows the end"
        assert not brokers[3].count("find_offset")


@pytest.mark.parametrize("zone", ["south", "east", "north"])
def test_whoever_may_read_anywhere_reads_near(zone: str, brokers: dict[int, StandIn]) -> None:
    (near,) = [node for node, name in ZONES.items() if name == zone]
    with quivermq.connect(brokers[1].address, zone=zone) as client:
        for _ in range(4):
            assert len(list(client.read_range("t", 0, 0, 1_000, follower_ok=True))) == 1_000
            assert len(list(client.read("t", follower_ok=True))) == 1_000
    assert fetches(brokers) == {near}


@pytest.mark.parametrize(
    "trouble",
    [
        DROP,
        OffsetOutOfRange("it lags behind", earliest=0, end=10),
        NotLeader("it repairs its log", leader=1),
        Corrupt("a sector is gone"),
    ],
)
def test_a_near_follower_in_trouble_is_left_for_the_leader(
    trouble: Action, brokers: dict[int, StandIn]
) -> None:
    brokers[2].script("fetch", trouble)
    with quivermq.connect(brokers[1].address, zone="south") as client:
        assert [message.value for message in client.read("t")] == VALUES
    assert brokers[2].count("fetch") == 1
    assert fetches(brokers) == {1, 2}


def test_a_near_follower_that_hangs_is_left_for_the_leader(brokers: dict[int, StandIn]) -> None:
    brokers[2].script("fetch", HANG)
    with quivermq.connect(brokers[1].address, zone="south", timeout=30.0) as client:
        assert [message.value for message in client.read("t")] == VALUES


def test_a_read_that_follows_asks_the_leader(brokers: dict[int, StandIn]) -> None:
    with quivermq.connect(brokers[1].address, zone="south") as client:
        reader = client.read("t", 0, follow=True)
        assert next(reader).value == VALUES[0]
        reader.close()
        bounded = client.read("t", 0, stop=2_000, follow=True)
        assert next(bounded).value == VALUES[0]
        bounded.close()
    assert fetches(brokers) == {1}


def test_of_several_near_followers_each_reader_stays_with_one() -> None:
    router = Router(VirtualTransport(), ["a:1"], 5.0)
    router.zone = "south"
    zones = {1: "north", 2: "south", 3: "south", 4: "east"}
    found = proto.ClusterMap(
        brokers=[proto.Broker(id=n, address=f"b{n}:1", zone=zone) for n, zone in zones.items()],
        topics=[proto.TopicMap(name="t", id=b"1" * 12, partitions=[_partition()])],
    )
    router.map.update(found, ["t"], router.transport.now())
    chosen = {_target(router, number) for number in range(30)}
    assert chosen == {"b2:1", "b3:1"}
    assert _target(router, 7) == _target(router, 7)
    router.map.avoid("b2:1", router.transport.now())
    router.map.avoid("b3:1", router.transport.now())
    assert _target(router, 7) in {"b4:1", "b1:1"}


def _partition() -> proto.PartitionMap:
    return proto.PartitionMap(partition=0, leader=1, replicas=[1, 2, 3, 4])


def _target(router: Router, number: int) -> str:
    attempts = router.attempts("reading")
    return run(router.target("t", 0, attempts, follower=number)).address


def test_a_map_without_zones_knows_none() -> None:
    known = ClusterMap(["a:1"])
    known.update(proto.ClusterMap(brokers=[proto.Broker(id=1, address="a:1")]), [], 0.0)
    assert known.zone(1) == known.zone(9) == ""


def test_the_zone_is_an_argument_a_variable_or_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "client.toml"
    file.write_text('zone = "of-the-file"\n')
    monkeypatch.setenv("QUIVER_CLIENT_CONFIG", str(file))
    monkeypatch.delenv("QUIVER_ZONE", raising=False)

    def zone(given: str | None) -> str:
        return ConnectOptions.of("a:1", token=None, tls=False, timeout=1.0, zone=given).zone

    assert zone(None) == "of-the-file"
    monkeypatch.setenv("QUIVER_ZONE", "of-the-machine")
    assert zone(None) == "of-the-machine"
    assert zone("mine") == "mine"
    assert zone("") == ""
    with pytest.raises(InvalidRequest, match="no zone name"):
        zone("a b")
