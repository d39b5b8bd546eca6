"""One acknowledgement goes the straight way, without a task, and is answered like the others."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from quivermq.errors import NotLeader
from quivermq.node.handlers import settle
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.consumer_stage import TOPIC, Consumer
from tests.transports.stage import on_loop, serving

STRAIGHT, LONG = "straight", "long"

Change = Callable[[proto.Settle], object]


async def answer(server: Server, group: str, body: proto.Settle) -> tuple[bool, proto.Response]:
    """Whether the request had a task, and its answer."""
    # Only a client that follows leaders has its answer from here in any case.
    request = proto.Request(id=9, direct=group == STRAIGHT, settle=body)
    replied: asyncio.Future[proto.Response] = asyncio.get_running_loop().create_future()
    task = server.broker.service.submit(
        request, [], lambda response, _: replied.set_result(response)
    )
    return task is not None, await replied


async def settled(
    server: Server, group: str, *changes: Change
) -> tuple[bool, str, tuple[int, ...]]:
    """What becomes of an acknowledgement of four messages that is changed so."""
    consumer = Consumer(server)
    got = await consumer.poll(4, group=group)
    one = proto.Settlement(partition=0, lease=got[0].lease)
    body = proto.Settle(topic=TOPIC, group=group, consumer=1, settlements=[one])
    for change in changes:
        change(body)
    has_task, response = await answer(server, group, body)
    described = await consumer.describe(group)
    acked = server.broker.counters.shares[TOPIC, 0, group].acked
    await consumer.close()
    figures = described.done, described.in_flight, described.floor, acked
    said = str(response).replace(group, "GROUP").replace(str(got[0].lease), "LEASE")
    return has_task, said, figures


def intervals(*parts: tuple[int, int]) -> Change:
    return lambda body: body.settlements[0].intervals.extend(
        proto.Interval(start=start, end=end) for start, end in parts
    )


def of_settlement(**fields: object) -> Change:
    return lambda body: body.settlements[0].MergeFrom(proto.Settlement(**fields))  # type: ignore[arg-type]


ACKNOWLEDGED: dict[str, list[Change]] = {
    "the whole lease": [],
    "a part": [intervals((1, 3))],
    "parts": [intervals((0, 1), (2, 4))],
    "more than is leased": [intervals((2, 9))],
    "what is not leased": [intervals((7, 9))],
    "an unknown lease": [of_settlement(lease=77)],
    "a part of an unknown lease": [of_settlement(lease=77), intervals((0, 2))],
    "the lease of another": [lambda body: setattr(body, "consumer", 5)],
    "a part of the lease of another": [
        lambda body: setattr(body, "consumer", 5),
        intervals((1, 3)),
    ],
}
REFUSED: dict[str, list[Change]] = {
    "an unknown topic": [lambda body: setattr(body, "topic", "none")],
    "an unknown group": [lambda body: setattr(body, "group", "none")],
    "a reserved group": [lambda body: setattr(body, "group", "_none")],
    "another life of the topic": [lambda body: setattr(body, "topic_id", b"other")],
    "an unknown partition": [of_settlement(partition=4)],
    "an interval backwards": [intervals((3, 1))],
    "no lease": [lambda body: setattr(body.settlements[0], "lease", 0)],
    "an unknown outcome": [lambda body: setattr(body.settlements[0], "outcome", 99)],
}


@pytest.mark.parametrize("name", ACKNOWLEDGED)
@on_loop
async def test_both_ways_do_and_say_the_same(name: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await started(server)
        had_task, *straight = await settled(server, STRAIGHT, *ACKNOWLEDGED[name])
        has_task, *long = await settled(server, LONG, *ACKNOWLEDGED[name])
        assert straight == long
        assert (had_task, has_task) == (False, True)


@pytest.mark.parametrize("name", REFUSED)
@on_loop
async def test_what_is_refused_is_refused_by_the_other_way(name: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await started(server)
        had_task, *straight = await settled(server, STRAIGHT, *REFUSED[name])
        _, *long = await settled(server, LONG, *REFUSED[name])
        assert straight == long
        assert had_task
        assert "error" in str(straight[0])


@on_loop
async def test_other_outcomes_and_several_settlements_have_a_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await started(server)
        has_task, *_ = await settled(server, STRAIGHT, of_settlement(outcome=proto.RELEASE))
        assert has_task
        has_task, *_ = await settled(
            server, STRAIGHT, lambda body: body.settlements.add(lease=77, partition=0)
        )
        assert has_task


@on_loop
async def test_a_scattered_lease_is_settled_by_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        await started(server)
        monkeypatch.setattr(settle, "_scattered", lambda *_: [[(0, 2)], [(2, 4)]])
        has_task, _, (done, *_) = await settled(server, STRAIGHT)
        assert (has_task, done) == (True, 4)


@on_loop
async def test_an_ack_is_answered_with_the_error_that_its_entry_ended_in(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        await started(server)
        consumer = Consumer(server)
        got = await consumer.poll(4, group=STRAIGHT)
        one = proto.Settlement(partition=0, lease=got[0].lease)
        body = proto.Settle(topic=TOPIC, group=STRAIGHT, consumer=1, settlements=[one])
        hosted = server.broker.consumers.dispatchers.leading(TOPIC, b"", 0).hosted
        asked = asyncio.create_task(answer(server, STRAIGHT, body))
        await asyncio.sleep(0)
        (done,) = hosted._waiting.values()
        hosted._waiting.clear()
        done(NotLeader("leadership was lost", leader=0))
        has_task, response = await asked
        assert not has_task
        assert response.error.code == "NotLeader"
        assert server.broker.counters.shares[TOPIC, 0, STRAIGHT].acked == 0
        await consumer.close()


async def started(server: Server) -> None:
    consumer = Consumer(server)
    await consumer.make_topic()
    await consumer.store(*[b"%d" % number for number in range(6)])
    await consumer.close()
