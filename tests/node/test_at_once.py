"""A replica that is alone and waits for no disk writes at once what it is asked, and the same."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from quivermq.batches import Frame, Index, Offset, Origin, encode_batch
from quivermq.errors import Corrupt, OutOfSequence, QuiverError, StorageFailed, StorageFull, Timeout
from quivermq.node import replica_scheduler
from quivermq.node.hosted_replica import HostedReplica
from quivermq.queue import LeaseManager, LeaseRequest
from quivermq.replica import Produced, Result
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import Consumer, led, move_leader
from tests.node.replica_stage import Stage, begin_produce, produced, stage
from tests.transports.stage import Talker, make_topic, on_loop, store, until

GROUP = "workers"


def frame(
    number: int, size: int = 10, producer: int = 0, sequence: int = 0, priority: int = 0
) -> Frame:
    origin = Origin(producer_id=producer, sequence=sequence, priority=priority)
    return encode_batch([b"%d" % number + bytes(size)], origin=origin)


async def turn(group: HostedReplica) -> None:
    """Let the event loop turn, and until nothing is due."""
    await asyncio.sleep(0)
    await until(lambda: not (group.is_scheduled or group.is_writing))


async def ask(group: HostedReplica, batch: Frame, *, at_once: bool) -> Result:
    """Store a batch on one of the two ways."""
    answers: list[Result] = []
    await turn(group)
    try:
        if at_once and group.produce_at_once(batch, answers.append):
            assert answers, "what is done at once is answered at once"
            return answers[0]
    except QuiverError as error:
        return error
    group.produce(batch, answers.append)
    await until(lambda: answers)
    return answers[0]


def lease(leases: LeaseManager, end: Offset) -> list[tuple[int, int]]:
    """Lease up to three messages, and acknowledge the first of them."""
    leased = leases.lease(LeaseRequest(GROUP, 7, 3, 60_000), end, 1_000, 1_000)
    if leased is None:
        return []
    first = leased.pieces[0]
    leases.acknowledge(GROUP, leased.lease, [(first.start, first.start + 1)], 7)
    return [(piece.start, piece.end) for piece in leased.pieces]


async def story(group: HostedReplica, seed: int, *, at_once: bool) -> list[str]:
    """A random mix of requests, and their answers: repeats, gaps and nonsense among them."""
    dice, told = Random(seed), []
    sequences = {1: 0, 2: 0}
    newest: dict[int, Frame] = {}
    await group.commit_lease_ops(lambda leases: leases.working_copy.open_group(GROUP, 0))
    for number in range(120):
        kind = dice.randrange(10)
        producer = dice.choice([1, 2])
        if kind == 0:
            end = group.readable_end
            told.append(
                str(await group.commit_lease_ops(lambda leases, end=end: lease(leases, end)))
            )
            continue
        if kind == 1:
            batch = frame(number, producer=producer, sequence=sequences[producer] + 5)
        elif kind == 2 and producer in newest:
            batch = newest[producer]
        elif kind < 6:
            batch = frame(number, dice.randrange(2_000), producer, sequences[producer])
            newest[producer] = batch
            sequences[producer] += 1
        else:
            batch = frame(number, dice.randrange(2_000), priority=dice.randrange(4))
        told.append(repr(await ask(group, batch, at_once=at_once)))
    await turn(group)
    return told


async def written(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, at_once: bool
) -> tuple[list[str], int, list[bytes]]:
    """The answers, what was applied, and the entries of the log."""
    async with stage(writes_inline=True) as it:
        it.scheduler.dice = Random(seed)
        monkeypatch.setattr(it.scheduler, "now_ms", lambda: 5_000)
        group = await it.serving_group()
        if not at_once:
            monkeypatch.setattr(HostedReplica, "_may_write_at_once", False)
        told = await story(group, seed, at_once=at_once)
        monkeypatch.undo()
        found, log = [], group.log
        index = log.first_index
        while index < log.edge.next_index:
            # Of one segment at a time.
            entries = log.read(index, end=log.edge.next_index, bytes_max=1 << 30)
            found += [bytes(entry.packed_header) + bytes(entry.body) for entry in entries]
            index = Index(entries[-1].header.index + 1)
        return told, group.replica.digest, found


@pytest.mark.parametrize("seed", range(5))
@on_loop
async def test_both_ways_answer_the_same_and_write_the_same_log(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, digest, entries = await written(monkeypatch, seed, at_once=True)
    assert (told, digest, entries) == await written(monkeypatch, seed, at_once=False)
    assert len(entries) > 60
    assert any("OutOfSequence" in one for one in told)
    assert any("is_repeat=True" in one for one in told)


def stored_at_once(group: HostedReplica, batch: Frame) -> Produced | None:
    """Store a batch in this turn; None if it has to wait."""
    answers: list[Produced] = []
    return answers[0] if group.produce_at_once(batch, answers.append) else None


@on_loop
async def test_a_batch_is_stored_answered_and_readable_in_the_turn_in_which_it_comes() -> None:
    async with stage(writes_inline=True) as it:
        group = await it.serving_group()
        await turn(group)
        woken: list[Offset] = []
        group.on_messages("reader", lambda: woken.append(group.readable_end))
        stored = stored_at_once(group, frame(1))
        assert (stored and stored.base_offset, group.readable_end, woken) == (0, 1, [1])


@on_loop
async def test_of_one_turn_the_first_is_written_at_once_and_the_others_together() -> None:
    async with stage(writes_inline=True) as it:
        group = await it.serving_group()
        # So much that the file has room for what follows, and does not grow meanwhile.
        await produced(group, 4_000)
        before = it.disk.operations
        await produced(group)
        operations = it.disk.operations - before
        await turn(group)
        assert stored_at_once(group, frame(0)) is not None
        later: list[Result] = []
        for number in range(1, 6):
            assert stored_at_once(group, frame(number)) is None
            group.produce(frame(number), later.append)
        before = it.disk.operations
        await until(lambda: len(later) == 5)
        assert [one.base_offset for one in later] == [3, 4, 5, 6, 7]  # type: ignore[union-attr]
        assert it.disk.operations == before + operations


@on_loop
async def test_nothing_overtakes_a_batch_that_waits() -> None:
    async with stage(writes_inline=True) as it:
        group = await it.serving_group()
        await turn(group)
        answers = begin_produce(group)
        assert stored_at_once(group, frame(1)) is None
        await until(lambda: answers)
        stored = await ask(group, frame(1), at_once=True)
        assert isinstance(stored, Produced)
        assert (answers[0].base_offset, stored.base_offset) == (0, 1)  # type: ignore[union-attr]


@on_loop
async def test_leases_that_wait_to_be_written_may_be_overtaken_and_are_kept() -> None:
    async with stage(writes_inline=True) as it:
        group = await it.serving_group()
        await group.commit_lease_ops(lambda leases: leases.working_copy.open_group(GROUP, 0))
        await produced(group)
        await turn(group)
        ask_for_one = LeaseRequest(GROUP, 7, 1, 60_000)
        leased = group.with_leases(lambda leases: leases.lease(ask_for_one, 1, 1_000, 1_000))
        assert leased is not None
        stored = stored_at_once(group, frame(1))
        assert stored is not None
        lost = await group.commit_lease_ops(
            lambda leases: leases.acknowledge(GROUP, leased.lease, None, 7)
        )
        assert lost == []
        groups = group.replica.groups
        assert groups is not None
        assert groups.by_name[GROUP].totals.done == 1


@on_loop
async def test_an_acknowledgement_is_committed_in_the_turn_in_which_it_comes() -> None:
    async with stage(writes_inline=True) as it:
        group = await it.serving_group()
        await group.commit_lease_ops(lambda leases: leases.working_copy.open_group(GROUP, 0))
        await produced(group)
        await turn(group)
        committed: list[Result] = []
        applied = group.replica.applied_index
        group.with_leases(lambda leases: lease(leases, Offset(1)), committed.append)
        assert len(committed) == 1
        assert not isinstance(committed[0], QuiverError)
        assert group.replica.applied_index == applied + 1


@on_loop
async def test_what_is_refused_at_once_is_refused_as_ever_and_leaves_nothing() -> None:
    async with stage(writes_inline=True) as it:
        group = await it.serving_group()
        await turn(group)
        with pytest.raises(OutOfSequence):
            stored_at_once(group, frame(1, producer=4, sequence=3))
        await turn(group)
        lying = frame(1)
        with pytest.raises(Corrupt):
            stored_at_once(group, Frame(lying.header._replace(count=9), lying.body))
        await turn(group)
        assert (stored := stored_at_once(group, frame(2)))
        assert (stored.base_offset, group.life) == (0, 0)


async def _first_of_a_turn(it: Stage) -> HostedReplica:
    group = await it.serving_group()
    await produced(group)
    await turn(group)
    return group


@on_loop
async def test_a_full_disk_is_waited_for_and_nothing_is_lost() -> None:
    async with stage(writes_inline=True) as it:
        group = await _first_of_a_turn(it)
        it.disk.faults.capacity_bytes = 0
        answers: list[Result] = []
        # The file has room left for some; what needs more goes the other way, and waits.
        stored = 0
        while stored_at_once(group, frame(stored, 1_500)) is not None:
            stored += 1
            await turn(group)
        group.produce(frame(stored, 1_500), answers.append)
        await until(lambda: not group.is_scheduled)
        assert answers == []
        it.disk.faults.capacity_bytes = None
        await until(lambda: answers)
        assert answers[0].base_offset == 1 + stored  # type: ignore[union-attr]
        assert (group.readable_end, group.trouble) == (2 + stored, "")


@pytest.mark.parametrize("together", [1, 3])
@on_loop
async def test_a_disk_that_is_full_at_the_write_itself_is_waited_for_too(together: int) -> None:
    async with stage(writes_inline=True) as it:
        group = await _first_of_a_turn(it)
        it.disk.faults.failure = StorageFull
        it.disk.faults.fail_operation = it.disk.operations
        answers: list[Result] = []
        if together == 1:
            assert stored_at_once(group, frame(0)) is None
        for number in range(together):
            group.produce(frame(number), answers.append)
        await until(lambda: len(answers) == together)
        assert [one.base_offset for one in answers] == [*range(1, together + 1)]  # type: ignore[union-attr]
        assert (group.readable_end, group.trouble) == (together + 1, "")


@on_loop
async def test_a_write_that_fails_is_no_success_and_the_replica_begins_again() -> None:
    async with stage(writes_inline=True) as it:
        group = await _first_of_a_turn(it)
        it.disk.faults.fail_operation = it.disk.operations
        with pytest.raises((Timeout, StorageFailed)):
            stored_at_once(group, frame(1))
        assert group.trouble
        await until(lambda: group.was_serving and not group.trouble)
        # Whether it is in the log is not known before; afterwards all agree.
        end = group.readable_end
        assert end in {1, 2}
        assert (await produced(group)).base_offset == end


@on_loop
async def test_an_acknowledgement_whose_write_fails_is_no_success() -> None:
    async with stage(writes_inline=True) as it:
        group = await _first_of_a_turn(it)
        await group.commit_lease_ops(lambda leases: leases.working_copy.open_group(GROUP, 0))
        await turn(group)
        it.disk.faults.fail_operation = it.disk.operations
        told: list[Result] = []
        group.with_leases(lambda leases: lease(leases, Offset(1)), told.append)
        assert [type(one) for one in told] == [Timeout]
        await until(lambda: group.was_serving and not group.trouble)


@on_loop
async def test_what_waits_for_a_disk_is_never_written_at_once() -> None:
    async with stage(writes_inline=False) as it:
        group = await _first_of_a_turn(it)
        assert stored_at_once(group, frame(1)) is None
        assert group.readable_end == 1


@on_loop
async def test_what_others_have_to_store_is_never_written_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, fsync="interval") as brokers:
        talker = await Talker.in_memory(brokers.running[1])
        await make_topic(talker)
        await store(talker, b"x")
        talker.close()
        every = (server.broker.scheduler.replicas for server in brokers.running.values())
        (group,) = [
            each
            for replicas in every
            for each in replicas.values()
            if each.name.topic == "orders" and each.was_serving
        ]
        assert len(group.replica.configuration.voters) == 3
        await turn(group)
        assert stored_at_once(group, frame(1)) is None
        answers: list[Result] = []
        group.produce(frame(2), answers.append)
        group.advance()
        assert not answers, "the others have not heard of it"
        await until(lambda: answers)
        assert isinstance(answers[0], Produced)
        assert group.readable_end == 2


@on_loop
async def test_what_other_brokers_have_to_store_leaves_in_the_same_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no disk is waited for, either: mail that waits for a tick, or for a notice, would take
    seconds here."""
    monkeypatch.setattr(replica_scheduler, "_NOTICE_S", 1.0)
    async with cluster(tmp_path, fsync="never", tick_ms=1_000, election_ticks=5) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(*(b"%d" % number for number in range(20)))
        leased = [await consumer.poll(1) for _ in range(20)]
        await asyncio.sleep(0.1)  # the leases have left as well, and take no other mail along
        loop = asyncio.get_running_loop()
        began = loop.time()
        for each in leased:
            await consumer.ack(each)
        assert loop.time() - began < 5.0
        await consumer.close()
