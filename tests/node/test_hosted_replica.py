"""A group between its replica, the loop and the disk: whatever fails, it ends in an answer."""

import asyncio

import pytest

from quivermq.batches import Index, Offset
from quivermq.errors import Corrupt, OffsetOutOfRange, QuiverError, StorageFailed, Timeout
from quivermq.log import Log
from quivermq.node import hosted_replica
from quivermq.node.disk_work import read_state
from quivermq.node.hosted_replica import HostedReplica
from quivermq.raft import Message, MessageKind
from quivermq.replica import Consensus, Replica
from tests.node.replica_stage import begin_produce, produced, stage
from tests.transports.stage import on_loop, until


def vote_request(candidate: int, term: int, to: int = 1) -> Consensus:
    """From one whose log is as good as any; it was asked to stand, so no lease protects others."""
    return Consensus(
        Message(
            MessageKind.VOTE, to, candidate, term, log_term=9, index=Index(99), by_transfer=True
        )
    )


def dropped_meanwhile() -> OffsetOutOfRange:
    return OffsetOutOfRange("dropped while it was read", earliest=0, end=0)


@on_loop
async def test_what_is_produced_is_stored_and_answered_once() -> None:
    async with stage() as it:
        group = await it.serving_group()
        answers = [begin_produce(group) for _ in range(20)]
        await until(lambda: all(answers))
        assert [answer.base_offset for (answer,) in answers] == [*range(20)]  # type: ignore[union-attr]
        assert group.readable_end == 20


@on_loop
async def test_nothing_is_answered_before_the_disk_has_it() -> None:
    async with stage() as it:
        group = await it.serving_group()
        with it.stuck_disk():
            answers = begin_produce(group)
            for _ in range(5):
                await produced_nothing(group)
            assert answers == []
        await until(lambda: answers)


async def produced_nothing(group: HostedReplica) -> None:
    assert group.readable_end == 0
    await until(lambda: not group.is_scheduled)


@on_loop
async def test_a_replica_made_anew_remembers_the_vote_that_was_being_written() -> None:
    async with stage() as it:
        group = it.group(founders=(1, 2, 3))
        with it.stuck_disk():
            group.receive(2, vote_request(2, term=7))
            group.advance()
            assert group.is_writing
            before = group.replica
            group._recover_from(dropped_meanwhile())
            assert group.replica is before
            assert group.trouble
        await until(lambda: group.replica is not before)
        assert (group.trouble, group.log.term, group.log.vote) == ("", 7, 2)
        group.receive(3, vote_request(3, term=7))
        await until(lambda: not group.is_scheduled and not group.is_writing)
        assert (group.trouble, group.log.vote) == ("", 2)


@on_loop
async def test_a_waiting_read_hears_when_the_replica_is_made_anew() -> None:
    async with stage() as it:
        group = await it.serving_group()
        woken: list[str] = []
        group.on_messages("reader", lambda: woken.append("woken"))
        with it.stuck_disk():
            answers = begin_produce(group)
            group._recover_from(dropped_meanwhile())
            assert isinstance(answers[0], Timeout)
            assert woken == ["woken"]
            assert it.leaderships[-1] == (group.id, False)
            assert isinstance(begin_produce(group)[0], Timeout)
        await until(lambda: group.was_serving)
        await produced(group)


@on_loop
async def test_readers_are_woken_when_the_office_is_lost() -> None:
    async with stage() as it:
        group = await it.serving_group()
        woken: list[str] = []
        group.on_messages("reader", lambda: woken.append("woken"))
        term = group.replica.term + 1
        group.receive(1, Consensus(Message(MessageKind.APPEND_REPLY, 1, 1, term)))
        await until(lambda: woken)


@pytest.mark.parametrize("writes_inline", [False, True])
@on_loop
async def test_a_full_disk_is_waited_for_and_nothing_is_lost(writes_inline: bool) -> None:
    async with stage(writes_inline=writes_inline) as it:
        group = await it.serving_group()
        await produced(group)
        it.disk.faults.capacity_bytes = 0
        answers = [begin_produce(group, 8_000) for _ in range(3)]
        await until(lambda: not group.is_scheduled)
        assert not any(answers)
        it.disk.faults.capacity_bytes = None
        await until(lambda: all(answers))
        assert group.readable_end == 4
        assert group.trouble == ""


@on_loop
async def test_what_a_full_disk_left_is_written_before_what_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted_replica, "RETRY_FULL_DISK_S", 1000.0)
    async with stage() as it:
        group = await it.serving_group()
        await produced(group)
        it.disk.faults.capacity_bytes = 0
        first = begin_produce(group, 8_000)
        await until(lambda: group._writing and not group.is_scheduled)
        second = begin_produce(group)
        await until(lambda: group._disk_queue)
        it.disk.faults.capacity_bytes = None
        group._retry(group.life)
        await until(lambda: first and second)
        assert [answer.base_offset for answer in (*first, *second)] == [1, 2]  # type: ignore[union-attr]
        assert group.trouble == ""


@on_loop
async def test_a_replica_made_anew_writes_nothing_that_the_one_before_had_gathered() -> None:
    async with stage() as it:
        group = await it.serving_group()
        with it.stuck_disk():
            begin_produce(group)
            group.advance()
            answers = begin_produce(group)
            group.advance()
            assert group._disk_queue
            group._recover_from(dropped_meanwhile())
            assert isinstance(answers[0], Timeout)
        await until(lambda: group.was_serving or "failed" in group.trouble)
        assert group.trouble == ""
        assert (await produced(group)).base_offset == 1


@on_loop
async def test_disk_work_that_fails_for_the_replica_before_does_not_interrupt_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log would be opened anew, without the knowledge of its damage."""
    monkeypatch.setattr(hosted_replica, "_REOPEN_S", 0.01)
    async with stage() as it:
        group = await it.serving_group()
        before, recover = group.replica, group._recover_from
        failed: list[Replica] = []

        def note(error: object) -> None:
            failed.append(group.replica)
            recover(error)

        with it.stuck_disk():
            begin_produce(group)
            group.advance()
            assert group._writing
            it.disk.faults.read_only = True
            recover(dropped_meanwhile())
            group._recover_from = note  # type: ignore[method-assign]
        await until(lambda: group.replica is not before)
        assert before not in failed
        it.disk.faults.read_only = False
        await until(lambda: group.was_serving)
        await produced(group)


@on_loop
async def test_a_request_that_was_given_up_harms_no_replica() -> None:
    async with stage() as it:
        group = await it.serving_group()
        with it.stuck_disk():
            asking = asyncio.create_task(
                group.commit_lease_ops(lambda leases: leases.seek("workers", 0))
            )
            await until(lambda: group.is_writing)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await produced(group)
        assert group.trouble == ""


@on_loop
async def test_mail_for_an_earlier_member_does_not_reach_its_successor() -> None:
    async with stage() as it:
        successor = 1 << 16 | 1
        group = it.group(founders=(successor, 2, 3), member=successor)
        it.scheduler.deliver(group.id, 2, 1, vote_request(2, 70))
        assert group.replica.term < 70
        it.scheduler.deliver(group.id, 2, successor, vote_request(2, 70, to=successor))
        assert group.replica.term == 70


@on_loop
async def test_what_makes_room_does_not_wait_behind_what_needs_it() -> None:
    async with stage() as it:
        group = await it.serving_group()
        await produced(group)
        it.disk.faults.capacity_bytes = 0
        answers = begin_produce(group, 8_000)

        def make_room(_: Log) -> None:
            it.disk.faults.capacity_bytes = None

        await until(lambda: group._writing and not group.is_scheduled)
        group.drop_before(make_room)
        await until(lambda: answers)
        assert group.readable_end == 2


@on_loop
async def test_what_retention_asks_for_does_not_pile_up() -> None:
    async with stage() as it:
        group = await it.serving_group()
        calls: list[Log] = []
        with it.stuck_disk():
            for _ in range(10):
                group.drop_before(calls.append)
        await until(lambda: not group.is_writing)
        assert len(calls) == 1


@pytest.mark.parametrize("refusal", [Corrupt("damaged"), StorageFailed("full")])
@on_loop
async def test_retention_that_fails_costs_no_more_than_the_office(refusal: QuiverError) -> None:
    async with stage() as it:
        group = await it.serving_group()
        await produced(group)

        def fail(_: Log) -> None:
            raise refusal

        group.drop_before(fail)
        await until(lambda: not group.is_writing)
        await until(lambda: group.was_serving and not group.trouble)
        assert (await produced(group)).base_offset == 1


@on_loop
async def test_a_log_that_was_fenced_is_opened_anew() -> None:
    async with stage() as it:
        group = await it.serving_group()
        await produced(group)
        it.disk.faults.read_only = True
        answers = begin_produce(group)
        await until(lambda: answers)
        assert isinstance(answers[0], Timeout)
        it.disk.faults.read_only = False
        await until(lambda: group.was_serving)
        assert (await produced(group)).base_offset in {1, 2}


@on_loop
async def test_a_closed_group_touches_its_folder_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic of the same name may have been made there meanwhile."""
    monkeypatch.setattr(hosted_replica, "_REOPEN_S", 0.01)
    async with stage() as it:
        group = await it.serving_group()
        it.disk.faults.read_only = True
        begin_produce(group)
        await until(lambda: group.trouble)
        it.scheduler.remove(group)
        await it.disk_thread.run(lambda: None)
        operations = it.disk.operations
        await asyncio.sleep(0.05)
        assert it.disk.operations == operations


@on_loop
async def test_a_group_that_is_closed_answers_all_that_waits() -> None:
    async with stage() as it:
        group = await it.serving_group()
        woken: list[str] = []
        group.on_messages("reader", lambda: woken.append("woken"))
        with it.stuck_disk():
            answers = begin_produce(group)
            group.close()
            assert [type(answer) for answer in answers] == [Timeout]
            assert woken == ["woken"]
            assert it.leaderships[-1] == (group.id, False)


@on_loop
async def test_a_log_of_another_group_in_its_folder_is_not_opened() -> None:
    async with stage() as it:
        group = await it.serving_group()
        it.scheduler.remove(group)
        other = HostedReplica(bytes(16), group.name, 1, read_state(group.log), it.scheduler)
        it.scheduler.add(other)
        other._reopen(StorageFailed("something"))
        await until(lambda: "another log" in other.trouble)


@on_loop
async def test_a_replica_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with stage() as it:
        good = [await it.serving_group(number) for number in (2, 3)]
        bad = await it.serving_group(1)

        def stumble() -> None:
            raise KeyError("nobody foresaw this")

        bad.after = stumble
        for group in (bad, *good):
            group.schedule()
        await until(lambda: bad.trouble)
        assert "nobody foresaw" in caplog.text
        for group in good:
            await produced(group)
        assert isinstance(begin_produce(bad)[0], Timeout)


@on_loop
async def test_a_replica_that_fails_at_a_tick_stops_no_other() -> None:
    async with stage() as it:
        groups = [await it.serving_group(number) for number in (1, 2, 3)]

        def stumble(_: int) -> None:
            raise KeyError("nobody foresaw this")

        groups[0].replica.tick = stumble  # type: ignore[method-assign]
        await until(lambda: groups[0].trouble)
        for group in groups[1:]:
            await produced(group)


@on_loop
async def test_messages_may_be_shown_once_they_are_committed_and_not_before() -> None:
    async with stage() as it:
        group = it.group(founders=(1, 2, 3))
        answers = begin_produce(group)
        await until(lambda: answers)
        assert isinstance(answers[0], QuiverError)
        assert group.readable_end == Offset(0)
