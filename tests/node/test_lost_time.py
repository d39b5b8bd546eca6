"""A broker that stood still finds out where it matters, and before it says anything to anybody."""

import asyncio
from pathlib import Path
from random import SystemRandom

import pytest

from quivermq.node.clock import Lapses, Moment
from quivermq.node.handlers import poll
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import GROUP, Consumer, led, move_leader, refusal, values
from tests.node.test_sticky_coordinator import Member
from tests.transports.stage import PATIENT, on_loop, serving, until

REFUSALS = {"NotLeader", "Timeout", "NotEnoughReplicas"}


class Clocks:
    """Those of the machine, which can be put forward as a pause does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.awake_or_not_s = self.wall_s = 0.0
        read = Moment.now

        def now() -> Moment:
            real = read()
            return Moment(real.awake_or_not_s + self.awake_or_not_s, real.wall_s + self.wall_s)

        monkeypatch.setattr(Moment, "now", now)


def test_the_clock_that_says_longest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    then = Moment.now()
    assert then.age_s() < 5
    clocks.awake_or_not_s = 100.0
    assert 100 <= then.age_s() < 105
    clocks.wall_s = -500.0
    assert 495 < then.age_s() <= 500
    lapses = Lapses()
    assert [lapses.look(5.0), lapses.look(5.0)] == [0, 0]
    clocks.wall_s = 0.0
    assert [lapses.look(5.0), lapses.look(5.0)] == [1, 1]


@on_loop
async def test_a_leader_that_stood_still_after_leasing_does_not_answer_the_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(b"a", b"b")
        assert values(await consumer.poll(1)) == [b"a"]
        old = brokers.running[1].broker
        read_all = poll.read_all

        def stand_still(*args: object) -> None:
            """Nobody is heard meanwhile, and no timer has run yet."""
            read_all(*args)  # type: ignore[arg-type]
            clocks.awake_or_not_s += 60.0
            old.scheduler.links = None

        monkeypatch.setattr(poll, "read_all", stand_still)
        request = proto.Request(direct=True, poll=consumer.poll_request(wait_ms=0))
        polling = asyncio.create_task(old.service.call(request, []))
        await until(lambda: led(brokers).get(0) in {2, 3} or polling.done())
        assert await refusal(polling) in REFUSALS
        old.scheduler.links = old.links
        await consumer.close()


@on_loop
async def test_a_leadership_is_as_old_as_the_question_and_not_as_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        dispatcher = brokers.running[1].broker.consumers.dispatchers.leading("orders", b"", 0)
        await dispatcher.confirm()
        clocks.awake_or_not_s += 60.0
        assert not dispatcher.is_confirmed
        confirming = asyncio.create_task(dispatcher.confirm())
        await asyncio.sleep(0)
        answer = dispatcher._confirming
        assert answer is not None
        clocks.awake_or_not_s += 60.0
        await answer
        assert not dispatcher.is_confirmed, "the quorum said so before the pause"
        await confirming
        assert dispatcher.is_confirmed
        await consumer.close()


@on_loop
async def test_a_coordinator_that_stood_still_confirms_no_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        leader = brokers.running[1].broker.metadata.leader
        member = Member(1, brokers.running[leader])
        await member.beat()
        assert (await member.beat(generation=0)).assigned, "it may ask as often as it likes"
        old = brokers.running[leader].broker
        clocks.wall_s += 60.0
        old.scheduler.links = None
        body = proto.StickyBeat(topic="orders", group="g", member=1)
        request = proto.Request(direct=True, sticky_beat=body)
        assert await refusal(old.service.call(request, [])) in REFUSALS
        old.scheduler.links = old.links
        await consumer.close()


@on_loop
async def test_what_is_leased_no_more_when_it_was_read_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b")
        await consumer.ack(await consumer.poll(1))
        dispatcher = server.broker.consumers.dispatchers.leading("orders", b"", 0)
        read_all, seeks = poll.read_all, [0]

        def seek(*args: object) -> None:
            read_all(*args)  # type: ignore[arg-type]
            if seeks:
                offset = seeks.pop()
                dispatcher.with_leases(lambda leases: leases.seek(GROUP, offset))

        monkeypatch.setattr(poll, "read_all", seek)
        got = await consumer.poll(wait_ms=5_000)
        assert values(got) == [b"a", b"b"]
        assert await consumer.ack(got) == []
        await consumer.close()


@on_loop
async def test_a_lease_of_another_consumer_is_not_settled_over_the_wire(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert isinstance(server.broker.scheduler.dice, SystemRandom), "others could be predicted"
        owner, thief = Consumer(server, 1), Consumer(server, 2)
        await owner.make_topic(partitions=2)
        await owner.store(b"a")
        await owner.store(b"b", partition=1)
        held = await owner.poll(partitions=[0, 1])
        swapped = [held[0]._replace(lease=held[1].lease), held[1]._replace(lease=held[0].lease)]
        for outcome in (proto.ACK, proto.NACK, proto.REJECT, proto.RELEASE):
            assert values(await thief.settle(outcome, held)) == [b"a", b"b"]
            assert values(await owner.settle(outcome, swapped)) == [b"a", b"b"]
        whole = [proto.Settlement(partition=one.partition, lease=one.lease) for one in held]
        extend = proto.Settlement(lease=held[0].lease, outcome=proto.EXTEND, visibility_ms=1)
        body = proto.Settle(topic="orders", group=GROUP, settlements=[*whole, extend], consumer=2)
        answer = await thief.ask(settle=body)
        assert [lost.settlement for lost in answer.settled.lost] == [0, 1, 2]
        shown = [one.consumer for one in (await thief.describe()).consumers]
        assert 1 not in shown, "nobody learns the number of another"
        assert await owner.ack(held) == []
        await owner.close()
        await thief.close()
