"""Damage to any one file of a broker's data directory: what still votes has lost nothing."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from quivermq.batches import encode_batch
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers
from tests.node.damage import (
    Damage,
    Origin,
    all_faults,
    damages,
    flipped,
    missing,
    orders,
    prepared,
    swapped,
    truncated,
    zeroed,
)
from tests.transports.stage import (
    PATIENCE_S,
    Talker,
    make_topic,
    on_loop,
    serving,
    settings,
    store,
    until,
)

SEED = int(os.environ.get("QUIVER_DAMAGE_SEED", "1"))
ALONE_S = 1.0
"""Within this time 1 and 3 agree on a leader, if they are going to."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return asyncio.run(prepared(tmp_path_factory.mktemp("damage")))


@on_loop
async def test_a_broker_that_still_votes_has_forgotten_nothing(
    tmp_path: Path, origin: Origin
) -> None:
    assert await all_faults(origin, damages(origin, SEED), tmp_path) == []


METADATA, ORDERS = "log/_quiver/0", "log/orders/0"
CASES = {
    "a flipped bit in the list": flipped("logs.json", 8 * 150),
    "no list": missing("logs.json"),
    "an identity in place of the list": swapped("logs.json", "identity.json"),
    "the vote of another partition": swapped(f"{ORDERS}/state", "log/orders/1/state"),
    "no vote": missing(f"{METADATA}/state"),
    "the folders of two partitions swapped": swapped(ORDERS, "log/orders/1"),
    "a partition missing": Damage(ORDERS, "missing", lambda root: shutil.rmtree(root / ORDERS)),
}


def last_segment(origin: Origin) -> str:
    return [file for file in origin.files if file.startswith(ORDERS) and file.endswith(".seg")][-1]


@pytest.mark.parametrize("name", [*CASES, "the end of a log reads as zeros", "a segment cut short"])
@on_loop
async def test_with_one_that_was_away_nothing_is_lost(
    tmp_path: Path, origin: Origin, name: str
) -> None:
    """1, whose file is damaged, and 3, which was away, are a majority; then 2 comes back."""
    if name in CASES:
        damage = CASES[name]
    elif name == "a segment cut short":
        damage = truncated(last_segment(origin), 5_000)
    else:
        used = len((origin.root / "1" / last_segment(origin)).read_bytes().rstrip(b"\0"))
        damage = zeroed(last_segment(origin), (used - 1) // 4096)
    shutil.copytree(origin.root, tmp_path / "live")
    damage.do(tmp_path / "live" / "1")
    brokers = Brokers(tmp_path / "live", 3, fsync="always", segment_bytes=65_536)
    brokers.addresses = origin.brokers.addresses
    try:
        await brokers.start(1, 3)
        await asyncio.sleep(ALONE_S)
        for node in (1, 3):
            for group in orders(brokers, node):
                if group.was_serving:
                    assert group.readable_end >= origin.ends[group.id]
        await brokers.start(2)
        await until(lambda: _led(brokers) == origin.ends)
    finally:
        await brokers.stop(*brokers.running)


def _led(brokers: Brokers) -> dict[bytes, int]:
    groups = [group for node in brokers.running for group in orders(brokers, node)]
    return {group.id: group.readable_end for group in groups if group.was_serving}


def overwrite(root: Path, file: str, at: int) -> None:
    with (root / file).open("r+b") as opened:
        opened.seek(at)
        opened.write(b"sixteen bad bytes"[:16])


async def trouble_of(server: Server) -> str:
    """What a user is shown of partition 0."""
    talker = await Talker.in_memory(server)
    answer = await talker.ask(proto.Request(id=4, describe_topics=proto.DescribeTopics()))
    talker.close()
    return "; ".join(topic.partitions[0].trouble for topic in answer.topics_described.topics)


@on_loop
async def test_a_broker_alone_says_what_is_damaged_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, fsync="always") as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        for _ in range(3):
            await store(talker, b"x" * 1000)
        talker.close()
    (segment,) = (tmp_path / ORDERS).glob("*.seg")
    overwrite(tmp_path, f"{ORDERS}/{segment.name}", 1500)
    caplog.clear()
    server = Server(settings(tmp_path, fsync="always"))
    await server.start()
    try:
        await until(lambda: any(g.is_abandoned for g in server.broker.scheduler.replicas.values()))
        trouble = await trouble_of(server)
        talker = await Talker.in_memory(server)
        produce = proto.Request(id=5, produce=proto.Produce(topic="orders"))
        refused = await talker.ask(produce, encode_batch([b"y"]))
        talker.close()
    finally:
        await server.stop()
    for text in (trouble, caplog.text, refused.error.message):
        assert segment.name in text
        assert "No other broker has a copy: stop the broker and restore the file" in text
    assert trouble.startswith("broker 1: ")
    (record,) = [record for record in caplog.records if "is damaged" in record.message]
    assert record.levelname == "ERROR"
    assert record.message.startswith("orders/0 is damaged: ")


@on_loop
async def test_damage_is_reported_with_its_remedy_and_so_is_its_repair(
    tmp_path: Path, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(origin.root, tmp_path / "live")
    overwrite(tmp_path / "live" / "1", last_segment(origin), 6_000)
    brokers = Brokers(tmp_path / "live", 3, fsync="always", segment_bytes=65_536)
    brokers.addresses = origin.brokers.addresses
    try:
        await brokers.start(1, 3)
        server = brokers.running[3]
        # 3, which has no damage, is asked: where nobody leads, each replica is asked for its own.
        async with asyncio.timeout(PATIENCE_S):
            while "broker 1: " not in (trouble := await trouble_of(server)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "until broker 2 or broker 3 has given it what is missing" in trouble
        assert last_segment(origin) in caplog.text
        assert "is mended" not in caplog.text
        await brokers.start(2)
        await until(lambda: "orders/0 is mended, and takes part again" in caplog.text)
        await until(lambda: _led(brokers) == origin.ends)
        assert await trouble_of(brokers.running[1]) == ""
    finally:
        await brokers.stop(*brokers.running)
