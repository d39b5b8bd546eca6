"""The coordinator of sticky groups: beats in, shares out, on brokers in this process."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quivermq.cluster import sticky_edits
from quivermq.errors import InvalidRequest, NotLeader, Overloaded, TooLarge, TopicNotFound
from quivermq.node import sticky_coordinator
from quivermq.node.delivery.registry import public_id
from quivermq.node.handlers.sticky import SESSION_MS_MAX
from quivermq.node.sticky_coordinator import Attention
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import PATIENCE_S, on_loop, serving, until


class Member:
    """Says beats to a broker, and does what it is told."""

    def __init__(self, number: int, server: Server, **changes: Any) -> None:
        self.number = number
        self.server = server
        self.state = proto.StickyState()
        self._changes = changes

    async def beat(self, **changes: Any) -> proto.StickyState:
        body = proto.StickyBeat(
            **{
                "topic": "orders",
                "group": "g",
                "member": self.number,
                "member_name": f"member {self.number}",
                "generation": self.state.generation,
                **self._changes,
                **changes,
            }
        )
        answer, _ = await self.server.broker.service.call(proto.Request(sticky_beat=body), [])
        assert answer.WhichOneof("body") == "sticky_state", answer
        self.state = answer.sticky_state
        return self.state

    async def follow(self) -> None:
        """Beat on and on, releasing what is revoked."""
        while True:
            await self.beat(released=self.state.revoked)

    @property
    def partitions(self) -> list[int]:
        return [each.partition for each in self.state.assigned]


async def make_topic(server: Server, partitions: int = 4, name: str = "orders") -> None:
    body = proto.CreateTopic(name=name, partitions=partitions)
    await server.broker.service.call(proto.Request(create_topic=body), [])


async def settled(members: Iterable[Member], partitions: int) -> None:
    """Beat until nothing moves any more."""
    members = list(members)
    followers = [asyncio.create_task(member.follow()) for member in members]
    try:
        await until(
            lambda: (
                sorted(p for m in members for p in m.partitions) == list(range(partitions))
                and not any(member.state.revoked for member in members)
            )
        )
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


def loads(members: Iterable[Member]) -> list[int]:
    return sorted(len(member.partitions) for member in members)


@on_loop
async def test_a_member_joins_with_its_first_beat_and_owns_everything(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        state = await Member(1, server).beat()
        assert [each.partition for each in state.assigned] == [0, 1, 2, 3]
        assert {each.epoch for each in state.assigned} == {state.generation}
        assert (state.members, state.beat_ms) == (1, 3000)


@on_loop
async def test_only_what_must_move_moves_and_what_stays_keeps_its_epoch(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        first, second = Member(1, server), Member(2, server)
        before = {each.partition: each.epoch for each in (await first.beat()).assigned}
        await second.beat()
        assert not second.partitions
        await first.beat()
        assert first.state.revoked == [2, 3]
        await settled([first, second], 4)
        assert loads([first, second]) == [2, 2]
        assert {each.partition: each.epoch for each in first.state.assigned} == {
            0: before[0],
            1: before[1],
        }
        assert min(each.epoch for each in second.state.assigned) > max(before.values())


@on_loop
async def test_a_beat_with_nothing_to_tell_waits_until_there_is_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sticky_coordinator, "BEAT_MS_MAX", 600_000)
    async with serving(tmp_path) as server:
        await make_topic(server)
        # The next beat is not due before the test has failed.
        first, second = (Member(number, server, session_ms=SESSION_MS_MAX) for number in (1, 2))
        await first.beat()
        waiting = asyncio.create_task(first.beat())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await second.beat()
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).revoked == [2, 3]


@on_loop
async def test_a_beat_waits_no_longer_than_until_the_next_is_due(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        member = Member(1, server, session_ms=900)
        generation = (await member.beat()).generation
        began = asyncio.get_running_loop().time()
        assert (await member.beat()).generation == generation
        assert 0.2 < asyncio.get_running_loop().time() - began < 10


@on_loop
async def test_a_member_that_leaves_is_gone_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        members = [Member(1, server), Member(2, server)]
        await asyncio.gather(*(member.beat() for member in members))
        await settled(members, 4)
        waiting = asyncio.create_task(members[0].beat())
        assert not (await members[1].beat(leaving=True)).assigned
        async with asyncio.timeout(3.0):
            await waiting
        assert members[0].partitions == [0, 1, 2, 3]
        await members[0].beat(leaving=True)
        assert not server.broker.metadata.view.sticky


@on_loop
async def test_a_member_that_leaves_is_not_called_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quivermq.coordinator")
    async with serving(tmp_path) as server:
        await make_topic(server)
        member, other = Member(1, server, session_ms=600), Member(2, server, session_ms=600)
        began = asyncio.get_running_loop().time()
        following = asyncio.create_task(member.follow())
        # The coordinator leads for longer than a session.
        await until(lambda: asyncio.get_running_loop().time() - began > 0.7)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await member.beat(leaving=True)
        assert not [text for text in caplog.messages if "silent" in text]
        await other.beat()
        await until(lambda: not server.broker.metadata.view.sticky)
        (told,) = [text for text in caplog.messages if "silent" in text]
        assert told.startswith("member 2 of group g of topic orders was silent for too long")


@pytest.mark.parametrize("moment", ["gathered", "written"])
@on_loop
async def test_a_member_that_leaves_while_it_joins_does_not_stay(
    tmp_path: Path, moment: str
) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        await Member(1, server).beat()
        broker = server.broker
        coordinator, metadata = broker.coordinator, broker.metadata
        reached, release = asyncio.Event(), asyncio.Event()
        held: Any = metadata.edit if moment == "written" else coordinator._write

        async def hold(*arguments: Any) -> Any:
            reached.set()
            await release.wait()
            return await held(*arguments)

        setattr(*((metadata, "edit") if moment == "written" else (coordinator, "_write")), hold)
        joining = asyncio.create_task(Member(2, server).beat())
        await reached.wait()
        leaving = asyncio.create_task(Member(2, server).beat(leaving=True))
        await asyncio.sleep(0.01)
        release.set()
        await asyncio.gather(joining, leaving)
        (group,) = metadata.view.sticky.values()
        assert list(group.members) == [1]


@on_loop
async def test_a_full_group_lets_members_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sticky_coordinator, sticky_edits):
        monkeypatch.setattr(module, "MEMBERS_MAX", 2)
    async with serving(tmp_path) as server:
        await make_topic(server)
        members = [Member(1, server), Member(2, server)]
        await asyncio.gather(*(member.beat() for member in members))
        await settled(members, 4)
        left, *refusals = await asyncio.gather(
            members[1].beat(leaving=True),
            *(Member(number, server).beat() for number in range(3, 40)),
            return_exceptions=True,
        )
        assert not left.assigned  # type: ignore[union-attr]
        assert {type(refusal) for refusal in refusals} == {Overloaded}
        (heard,) = server.broker.coordinator._heard.values()
        assert list(heard) == [1]
        assert (await Member(3, server).beat()).members == 2


@on_loop
async def test_a_member_that_is_silent_for_a_session_is_evicted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        live, silent = Member(1, server, session_ms=30_000), Member(2, server, session_ms=600)
        await asyncio.gather(live.beat(), silent.beat())
        await settled([live], 4)
        again = await silent.beat()
        assert again.generation > live.state.generation
        assert not again.assigned


@on_loop
async def test_a_member_that_beats_is_never_evicted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        members = [Member(n, server, session_ms=1_500) for n in (1, 2)]
        await asyncio.gather(*(member.beat() for member in members))
        await settled(members, 4)
        generation = members[0].state.generation
        for _ in range(5):
            await asyncio.gather(*(member.beat() for member in members))
        assert [member.state.generation for member in members] == [generation] * 2


@on_loop
async def test_partitions_that_are_added_are_given_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        member = Member(1, server)
        await member.beat()
        waiting = asyncio.create_task(member.beat())
        body = proto.AlterTopic(name="orders", partitions=6)
        await server.broker.service.call(proto.Request(alter_topic=body), [])
        async with asyncio.timeout(3.0):
            await waiting
        assert member.partitions == [0, 1, 2, 3, 4, 5]


@on_loop
async def test_a_deleted_topic_ends_its_groups_and_an_equal_one_starts_afresh(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        member = Member(1, server)
        last = (await member.beat()).generation
        waiting = asyncio.create_task(member.beat())
        await asyncio.sleep(0.05)
        body = proto.DeleteTopic(name="orders")
        await server.broker.service.call(proto.Request(delete_topic=body), [])
        async with asyncio.timeout(3.0):
            assert not (await waiting).assigned
        with pytest.raises(TopicNotFound):
            await member.beat()
        assert not server.broker.metadata.view.sticky
        await make_topic(server, 2)
        assert min(each.epoch for each in (await member.beat()).assigned) > last


@on_loop
async def test_groups_are_described_with_their_members_and_leases(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        await Member(1, server, assignor="range").beat()
        await Member(9, server, group="other").beat()
        body = proto.DescribeSticky(topic="orders", group="g")
        answer, _ = await server.broker.service.call(proto.Request(describe_sticky=body), [])
        (group,) = answer.sticky_described.groups
        assert (group.group, group.assignor) == ("g", "range")
        assert [(m.member, m.name, list(m.partitions)) for m in group.members] == [
            (public_id(1), "member 1", [0, 1, 2, 3])
        ]
        body.group = ""
        answer, _ = await server.broker.service.call(proto.Request(describe_sticky=body), [])
        assert len(answer.sticky_described.groups) == 2
        body.topic = "nothing"
        with pytest.raises(TopicNotFound):
            await server.broker.service.call(proto.Request(describe_sticky=body), [])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "nothing"}, TopicNotFound),
        ({"group": "a/b"}, InvalidRequest),
        ({"group": "g" * 201}, TooLarge),
        ({"assignor": "clever"}, InvalidRequest),
        ({"member": 0}, InvalidRequest),
        ({"member": 2**63}, InvalidRequest),
        ({"session_ms": 499}, InvalidRequest),
        ({"session_ms": 3_600_001}, InvalidRequest),
        ({"released": [0] * 100_001}, InvalidRequest),
    ],
)
@on_loop
async def test_a_beat_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception]
) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        with pytest.raises(error):
            await Member(1, server, **changes).beat()
        assert not server.broker.metadata.view.sticky


@on_loop
async def test_names_of_members_are_kept_short_and_plain(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server)
        await Member(1, server, member_name="ü\n" + "x" * 1000).beat()
        (group,) = server.broker.metadata.view.sticky.values()
        assert group.members[1].name == "??" + "x" * 62


@on_loop
async def test_a_thousand_members_that_come_and_go_cost_few_changes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, 16)
        members = [Member(n, server) for n in range(1, 1_001)]

        async def visit(member: Member, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            await member.beat()
            if member.state.revoked:
                await member.beat(released=member.state.revoked)
            await member.beat(leaving=True)

        version = server.broker.metadata.view.version
        await asyncio.gather(*(visit(m, n * 0.003) for n, m in enumerate(members)))
        assert not server.broker.metadata.view.sticky
        assert server.broker.metadata.view.version - version < 1_000, "they were not gathered"


@on_loop
async def test_a_thousand_members_at_once_share_evenly(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, 16)
        members = [Member(n, server) for n in range(1, 1_001)]
        await asyncio.gather(*(member.beat() for member in members))
        (group,) = server.broker.metadata.view.sticky.values()
        assert len(group.members) == 1_000
        assert not group.revoking
        assert set(Counter(owner.member for owner in group.owners).values()) == {1}


@on_loop
async def test_time_that_a_broker_stood_still_is_not_held_against_members() -> None:
    attention = Attention()
    loop = asyncio.get_running_loop()
    began, before = attention.now(), loop.time()
    loop.time = lambda: before + 60.0  # type: ignore[method-assign]  # a loop that was stalled
    try:
        assert 1.0 <= attention.now() - began < 1.5
    finally:
        del loop.time


# More than one broker.


def leader_of(brokers: Brokers) -> Server:
    return next(s for s in brokers.running.values() if s.broker.metadata.is_leader)


@on_loop
async def test_any_broker_forwards_heartbeats_to_the_leader_of_the_metadata_partition(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        leader = leader_of(brokers)
        other = next(s for s in brokers.running.values() if s is not leader)
        await make_topic(leader)
        member = Member(1, other)
        await member.beat()
        assert member.partitions == [0, 1, 2, 3]
        request = proto.Request(sticky_beat=proto.StickyBeat(topic="orders"), direct=True)
        with pytest.raises(NotLeader) as refused:
            await other.broker.service.call(request, [])
        assert refused.value.leader == leader.broker.settings.node_id


@on_loop
async def test_the_next_coordinator_goes_on_with_the_same_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        leader = leader_of(brokers)
        await make_topic(leader)
        others = [s for s in brokers.running.values() if s is not leader]
        members = [Member(n, others[0], session_ms=5_000) for n in (1, 2)]
        await asyncio.gather(*(member.beat() for member in members))
        await settled(members, 4)
        generation, parts = members[0].state.generation, [m.partitions for m in members]
        waiting = asyncio.create_task(members[0].beat())
        for other in others:
            # It runs for longer than a session lasts, and never heard these members.
            other.broker.coordinator._attention._time += 60.0
        await brokers.stop(leader.broker.settings.node_id)
        await until(lambda: any(s.broker.coordinator._term for s in brokers.running.values()))
        await asyncio.gather(waiting, return_exceptions=True)
        # It has looked for silent members once.
        await leader_of(brokers).broker.coordinator._work()
        for member in members:
            await member.beat(generation=0)
        assert members[0].state.generation == generation
        assert [m.partitions for m in members] == parts
