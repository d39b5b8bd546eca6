"""What a broker does that meets a later release: in its directory, its catalog, on its links."""

import asyncio
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

import quivermq
from quivermq.cluster import FEATURE_LEVEL_MAX, OWN_LEVELS, Edit
from quivermq.cluster.records import CLUSTER_KEY
from quivermq.errors import QuiverError, UnsupportedFormat
from quivermq.node.data_dir import DataDirectory, DirectoryIdentity, ListedLog
from quivermq.transports import Server
from quivermq.wire import PROTOCOL, agreed_protocol, packet, parse_peer_hello, proto
from tests.node.cluster_stage import cluster
from tests.node.test_peers import GROUP, broker, connected
from tests.transports.stage import Talker, make_topic, on_loop, serving, settings, store, until

LATER = OWN_LEVELS.high + 1


def files_of(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file, with what is in it and when it was written."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


async def used(root: Path) -> None:
    async with serving(root) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        await store(talker, b"x")
        talker.close()


@dataclass(frozen=True)
class LaterIdentity(DirectoryIdentity):
    """As a later release may write it."""

    later: str = "x"


@dataclass(frozen=True)
class LaterLog(ListedLog):
    later: str = "x"


@on_loop
async def test_a_directory_of_a_later_level_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    await used(tmp_path)
    directory = DataDirectory(str(tmp_path), 1)
    assert directory.identity.level == OWN_LEVELS.high
    directory.learn_level(LATER, "7.8.9")
    directory.close()
    before = files_of(tmp_path)
    with pytest.raises(UnsupportedFormat, match=r"7\.8\.9 or later") as caught:
        await Server(settings(tmp_path)).start()
    assert quivermq.__version__ in str(caught.value)
    assert files_of(tmp_path) == before


def test_an_identity_without_a_level_is_that_of_a_build_before_the_first_release(
    tmp_path: Path,
) -> None:
    directory = DataDirectory(str(tmp_path), 1)
    written = asdict(directory.identity)
    del written["level"], written["release"]
    assert directory._known_identity(written) == directory.identity, "it holds nothing yet"
    with pytest.raises(UnsupportedFormat, match=r"before release 0\.2\.0"):
        directory._known_identity({**written, "member": 1})
    directory.close()


@on_loop
async def test_what_a_later_release_added_to_a_directory_is_no_reason_to_refuse_it(
    tmp_path: Path,
) -> None:
    """Going back works as long as the level was not raised."""
    await used(tmp_path)
    directory = DataDirectory(str(tmp_path), 1)
    known = asdict(directory.identity)
    directory.identity = LaterIdentity(**{**known, "later": "x"})
    directory.learn_level(OWN_LEVELS.high, "0.2.0-later")
    directory.list_logs(
        {group: LaterLog(log.folder, log.member) for group, log in directory.logs.items()}
    )
    directory.close()
    assert b"later" in (tmp_path / "identity.json").read_bytes()
    assert b"later" in (tmp_path / "logs.json").read_bytes()
    async with serving(tmp_path) as server:
        await until(lambda: server.broker.is_ready)


def test_a_directory_that_leaves_its_cluster_forgets_its_level(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), 1)
    directory.list_logs({"aa": ListedLog("log/_quiver/0", 1)})
    directory.settle("c1", 1)
    directory.learn_level(1, "0.2.0")
    directory.close()
    again = DataDirectory(str(tmp_path), 1)
    assert (again.identity.level, again.identity.release) == (1, "0.2.0")
    again.settle("", 0)
    assert (again.identity.level, again.identity.release) == (0, "")
    again.close()


@on_loop
async def test_a_catalog_at_a_later_level_stops_the_broker_and_nothing_of_it_is_acted_on(
    tmp_path: Path,
) -> None:
    heard: list[QuiverError] = []
    async with serving(tmp_path) as server:
        node = server.broker
        node.on_unfit = heard.append
        view = node.metadata.view
        raised = {**view.values[CLUSTER_KEY], "level": LATER, "release": "7.8.9"}
        strange = {"state": "of a later release"}
        edit = Edit({CLUSTER_KEY: raised, "broker/7": strange})
        await node.metadata.edit(lambda _: edit)
        assert "7.8.9 or later" in str(heard[0])
        assert node.metadata.view is view
        assert "7.8.9" in str(node.unready)
        assert node.directory.identity.level == OWN_LEVELS.high
    # The directory does not say it, so the next start gets as far as the catalog.
    heard.clear()
    again = Server(settings(tmp_path))
    again.broker.on_unfit = heard.append
    await again.start()
    await until(lambda: heard)
    assert "7.8.9 or later" in str(heard[0])
    await again.stop()


@on_loop
async def test_a_broker_whose_release_lacks_the_level_is_not_registered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        register = proto.RegisterBroker(
            id=2,
            directory_id=bytes(16),
            boot=1,
            address="127.0.0.1:1",
            joining=True,
            version="0.1",
            level_min=LATER,
            level_max=LATER,
        )
        answer = await talker.ask(proto.Request(id=7, register_broker=register))
        assert answer.error.code == "UnsupportedFormat"
        assert "quiver cluster upgrade" in answer.error.message
        register.ClearField("level_min")
        register.ClearField("level_max")
        answer = await talker.ask(proto.Request(id=8, register_broker=register))
        assert answer.error.code == "UnsupportedFormat"
        assert list(server.broker.metadata.view.brokers) == [1]
        talker.close()


async def enrol(server: Server, node: int) -> None:
    """A broker that is known, and not there."""
    talker = await Talker.by_socket(server)
    register = proto.RegisterBroker(
        id=node,
        directory_id=bytes(16),
        boot=1,
        joining=True,
        level_min=OWN_LEVELS.low,
        level_max=OWN_LEVELS.high,
    )
    answer = await talker.ask(proto.Request(id=7, register_broker=register))
    assert answer.WhichOneof("body") == "broker_registered"
    talker.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"protocol": PROTOCOL + 2, "protocol_min": PROTOCOL + 1}, "speaks protocols 3 to 4"),
        ({"protocol": PROTOCOL + 1, "protocol_min": 0}, "speaks protocol 3,"),
        ({"level_min": 0, "level_max": 0}, r"older than release 0\.2\.0"),
        ({"level_min": LATER, "level_max": LATER}, "needs at least"),
        ({"level": LATER}, f"at feature level {LATER}"),
    ],
)
@on_loop
async def test_a_link_between_releases_that_do_not_fit_is_refused_in_words(
    tmp_path: Path, said: dict[str, int], why: str
) -> None:
    async with serving(tmp_path) as server:
        await enrol(server, node=2)
        hello = server.broker.membership.hello()
        hello.node, hello.directory_id, hello.version = 2, bytes(16), "5.5"
        for name, value in said.items():
            setattr(hello, name, value)
        host, port = server.peer_listen.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.writelines(packet(hello.SerializeToString()))
        length = int.from_bytes((await reader.readexactly(8))[4:], "big")
        answer = parse_peer_hello(await reader.readexactly(length))
        assert re.search(why, answer.refusal), answer.refusal
        assert "5.5" in answer.refusal
        assert await reader.read() == b"", "the connection is closed"
        writer.close()


def test_the_highest_common_protocol_is_spoken() -> None:
    assert agreed_protocol(0, PROTOCOL) == PROTOCOL
    assert agreed_protocol(PROTOCOL, PROTOCOL + 5) == PROTOCOL
    assert agreed_protocol(PROTOCOL + 1, PROTOCOL + 5) == 0
    assert agreed_protocol(0, PROTOCOL + 1) == 0
    assert agreed_protocol(0, 0) == 0


@on_loop
async def test_a_client_of_a_later_release_is_welcome_by_what_both_speak(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        for protocols, body in (
            ((PROTOCOL, PROTOCOL + 3), "welcome"),
            ((PROTOCOL + 1, PROTOCOL + 3), "error"),
        ):
            low, high = protocols
            greeting = proto.Hello(protocol=high, protocol_min=low, client="t", version="8.1")
            answer = await talker.ask(proto.Request(id=high, hello=greeting))
            assert answer.WhichOneof("body") == body
        assert answer.error.code == "UnsupportedFormat"
        assert "8.1" in answer.error.message
        assert quivermq.__version__ in answer.error.message
        talker.close()


@on_loop
async def test_a_refused_broker_does_not_dial_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker(1) as one, broker(2) as two:
        dialled = []
        greeting = one.hello

        def hello() -> proto.PeerHello:
            dialled.append(1)
            return greeting()

        one.links.hooks.hello = hello
        two.unwelcome.add(1)
        one.links.know(2, two.address)
        await asyncio.sleep(1.0)
        # 50 ms, and twice as long each time, on two lanes; without that it would be 40 to 80.
        assert 4 <= len(dialled) <= 16
        assert caplog.text.count("do not accept each other") == 1
        two.unwelcome.clear()
        await until(lambda: one.links.reaches(2))


@on_loop
async def test_mail_of_a_later_release_is_left_unread_and_the_link_stays() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        lane = next(iter(one.links.peers[2].lanes.values()))
        connection = lane.connection
        assert connection is not None
        strange = proto.PeerMessage(partition=GROUP, sender=1, to=2)
        known = proto.PeerMessage(partition=GROUP, sender=1, to=2, rouse=proto.Rouse())
        connection.write(proto.PeerPacket(peer_messages=[strange, known]).SerializeToString())
        await until(lambda: two.mail)
        assert len(two.mail) == 1
        assert lane.connection is connection


@on_loop
async def test_a_broker_that_is_let_in_knows_the_level_in_its_directory(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        for node, server in brokers.running.items():
            await until(lambda server=server: server.broker.membership.level == OWN_LEVELS.high)
            assert server.broker.directory.identity.release == FEATURE_LEVEL_MAX.release
            assert server.broker.metadata.view.broker(node).levels == OWN_LEVELS
