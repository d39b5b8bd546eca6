"""Backups of one broker, restored into another: what comes back, and what is refused."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quivermq
from quivermq.backup import RestoreOptions, restore_backup, take_backup
from quivermq.backup import take as taking
from quivermq.batches import Frame
from quivermq.client import BackupAccess, Core, Message, Retention
from quivermq.client.transport import run
from quivermq.cluster.restoring import PRODUCER_MARGIN
from quivermq.errors import (
    ConnectionFailed,
    Corrupt,
    InvalidRequest,
    Overloaded,
    Timeout,
    TopicExists,
)
from quivermq.queue import Groups
from quivermq.wire import proto
from tests.backup.conftest import running

PATIENCE_S = 20.0


def until(found: Callable[[], Any]) -> Any:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return value


def messages(client: quivermq.Client, topic: str) -> dict[int, list[Message]]:
    """All of them, with everything that a reader sees."""
    count = len(client.topic(topic).partitions)
    return {n: list(client.read(topic, partition=n, start="earliest")) for n in range(count)}


def polled(client: quivermq.Client, topic: str, group: str) -> list[Any]:
    """All that the group can get now."""
    found = []
    while some := client.poll(topic, group, wait=0.2):
        found += some
    return found


async def new_producer(core: Core) -> int:
    """The id that the next producer gets."""
    request = proto.Request(new_producer=proto.NewProducer())
    answer = await core.router.ask_any(request, core.router.attempts("asking for an id"))
    return answer.producer_granted.producer_id


class Interrupted(BackupAccess):
    """The connection is lost when it is asked this for the n-th time."""

    def __init__(self, client: quivermq.Client, method: str, after: int) -> None:
        super().__init__(client)
        ask = getattr(self, method)
        left = [after]

        def ask_or_fail(*given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise ConnectionFailed("the way to the broker is gone")
            return ask(*given)

        setattr(self, method, ask_or_fail)


def test_messages_come_back_at_their_offsets_with_all_that_they_had(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("orders", partitions=3, max_deliveries=7, retention=Retention(max_age=9e6))
    for n in range(200):
        source.produce(
            "orders", b"v%d" % n, key=b"k%d" % n, headers={"n": b"%d" % n}, priority=n % 8
        )
    source.produce_many("orders", [b"many-%d" % n for n in range(500)])
    take_backup(from_source, folder)
    before = messages(source, "orders")

    report = restore_backup(to_empty, folder)

    assert (report.topics, report.messages) == (["orders"], 700)
    assert messages(empty, "orders") == before
    was, now = source.topic("orders"), empty.topic("orders")
    assert (now.id, now.max_deliveries, now.retention) == (was.id, 7, was.retention)
    # It goes on where it was.
    ends = {partition.partition: partition.end_offset for partition in was.partitions}
    for number, end in ends.items():
        assert empty.produce("orders", b"next", partition=number).offset == end


def test_groups_go_on_where_they_were(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("orders", partitions=2)
    for n in range(100):
        source.produce("orders", b"%d" % n)
    got = source.poll("orders", "work", max_messages=40, wait=PATIENCE_S)
    source.ack(got[::2])
    source.release(got[1::2])
    done = {message.value for message in got[::2]}
    source.commit("orders", "reader", partition=1, offset=17)
    take_backup(from_source, folder)
    source.ack(source.poll("orders", "work", max_messages=5, wait=PATIENCE_S))

    restore_backup(to_empty, folder)

    again = polled(empty, "orders", "work")
    values = sorted(int(message.value) for message in again)
    assert values == [n for n in range(100) if b"%d" % n not in done]
    empty.ack(again)
    assert empty.committed("orders", "reader") == {1: 17}
    assert not polled(empty, "orders", "work")


def test_a_sticky_group_goes_on_at_what_it_committed(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("orders")
    for n in range(10):
        source.produce("orders", b"%d" % n)
    # More lives than the next cluster will have had: its epochs are below those of the backup.
    for _ in range(3):
        with source.consumer("orders", "sticky") as member:
            assert len(member.poll(max_messages=2, wait=PATIENCE_S)) == 2
    take_backup(from_source, folder)
    restore_backup(to_empty, folder)
    with empty.consumer("orders", "sticky") as member:
        assert next(message.value for message in member.poll(wait=PATIENCE_S)) == b"6"


def test_what_was_leased_comes_again_after_its_visibility(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("orders")
    source.produce("orders", b"held")
    (held,) = source.poll("orders", "work", wait=PATIENCE_S, visibility=1.0)
    take_backup(from_source, folder)
    restore_backup(to_empty, folder)
    assert empty.group("orders", "work").in_flight == 1
    (again,) = until(lambda: empty.poll("orders", "work", wait=1.0))
    assert (again.offset, again.value) == (held.offset, b"held")


def test_a_restored_partition_begins_where_retention_had_left_it(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("short", retention=Retention(max_messages=50))
    for n in range(100):
        source.produce("short", b"%d" % n * 400)
    assert source.poll("short", "work", max_messages=10, wait=PATIENCE_S)
    take_backup(from_source, folder)
    for n in range(100, 400):
        source.produce("short", b"%d" % n * 400)
    until(lambda: source.topic("short").partitions[0].start_offset > 100)

    report = take_backup(from_source, folder)
    begin = report.manifest.topics[0].partitions[0].start
    restore_backup(to_empty, folder)

    assert begin > 100
    assert empty.topic("short").partitions[0].start_offset == begin
    kept = [(n, b"%d" % n * 400) for n in range(begin, 400)]
    assert [(one.offset, one.value) for one in messages(empty, "short")[0]] == kept
    assert [(one.offset, one.value) for one in polled(empty, "short", "work")] == kept


def test_a_partition_of_which_all_was_deleted_goes_on_at_its_end(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("gone", retention=Retention(max_age=0.05))
    for _ in range(10):
        source.produce("gone", b"x")
    until(lambda: source.topic("gone").partitions[0].start_offset == 10)
    take_backup(from_source, folder)
    restore_backup(to_empty, folder)
    assert empty.produce("gone", b"next").offset == 10
    assert [m.offset for m in empty.poll("gone", "work", wait=PATIENCE_S)] == [10]


def test_delayed_messages_are_still_due_at_their_time(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("later")
    source.produce("later", b"soon", delay=2.0)
    source.produce("later", b"cancelled", delay=2.0)
    source.produce("later", b"in a year", delay=3600 * 24 * 365)
    source.cancel_delayed("later", 0, 1)
    before = source.delayed("later")
    take_backup(from_source, folder)

    restore_backup(to_empty, folder)

    assert empty.delayed("later") == before
    (soon,) = until(lambda: empty.poll("later", "work", wait=1.0))
    assert soon.value == b"soon"
    assert time.time() >= before[0].due.timestamp()
    soon.ack()
    assert not empty.poll("later", "work", wait=0.1)


def test_a_second_backup_copies_only_what_is_new(
    source: quivermq.Client, from_source: BackupAccess, folder: Path
) -> None:
    source.create_topic("orders", partitions=2)
    source.produce_many("orders", [b"x" * 1000] * 300)
    first = take_backup(from_source, folder)
    source.produce_many("orders", [b"y" * 10] * 7)
    source.create_topic("more")
    source.produce("more", b"z")
    second = take_backup(from_source, folder)
    third = take_backup(from_source, folder)
    assert (first.messages_new, second.messages_new, third.messages_new) == (300, 8, 0)
    assert second.bytes_new < 10_000
    assert third.bytes_new == 0
    kept = {file.name for file in third.manifest.files()}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.is_file()}
    assert found - {"backup.json", "backup.copy.json", "backup.lock"} == kept


def test_a_backup_that_was_stopped_goes_on_where_it_was(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(taking, "FILE_BYTES", 1)
    monkeypatch.setattr("quivermq.client.backup_access.FETCH_BYTES", 1)
    source.create_topic("orders")
    for n in range(10):
        source.produce("orders", b"%d" % n)
    with pytest.raises(ConnectionFailed):
        take_backup(Interrupted(source, "fetch", 6), folder)
    with pytest.raises(InvalidRequest, match="no finished backup"):
        restore_backup(to_empty, folder)
    # The last whole file was cut short by a crash of the machine.
    last = max(folder.rglob("*.frames"))
    last.write_bytes(last.read_bytes()[:-1])
    assert take_backup(from_source, folder).messages_new == 5
    restore_backup(to_empty, folder)
    assert messages(empty, "orders") == messages(source, "orders")


def test_a_restore_that_was_stopped_goes_on_and_nobody_uses_the_topic_meanwhile(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("quivermq.backup.restore.REQUEST_FRAMES", 3)
    source.create_topic("orders")
    for n in range(20):
        source.produce("orders", b"%d" % n)
    source.ack(source.poll("orders", "work", max_messages=15, wait=PATIENCE_S))
    take_backup(from_source, folder)
    with pytest.raises(ConnectionFailed):
        restore_backup(Interrupted(empty, "restore_frames", 5), folder)
    for use in (
        lambda client: client.produce("orders", b"early"),
        lambda client: client.poll("orders", "work", wait=0.0),
        lambda client: list(client.read("orders", partition=0, start="earliest")),
        lambda client: client.commit("orders", "reader", partition=0, offset=0),
    ):
        with (
            quivermq.connect(empty._options.servers, timeout=1.5) as hasty,
            pytest.raises((Overloaded, Timeout), match="being restored"),
        ):
            use(hasty)

    restore_backup(BackupAccess(empty), folder)

    assert messages(empty, "orders") == messages(source, "orders")
    assert sorted(int(m.value) for m in polled(empty, "orders", "work")) == [*range(15, 20)]
    # Once more: it is there, and stays as it is.
    empty.produce("orders", b"since")
    assert restore_backup(BackupAccess(empty), folder).topics == ["orders"]
    assert len(messages(empty, "orders")[0]) == 21


def test_a_cluster_in_use_is_refused_unless_one_topic_is_asked_for(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    for name in ("orders", "other"):
        source.create_topic(name)
        source.produce(name, name.encode())
    take_backup(from_source, folder)
    empty.create_topic("other")
    with pytest.raises(TopicExists, match="in use"):
        restore_backup(to_empty, folder)
    with pytest.raises(TopicExists, match="'other' exists"):
        restore_backup(to_empty, folder, RestoreOptions(topic="other"))
    with pytest.raises(InvalidRequest, match="it has: orders, other"):
        restore_backup(to_empty, folder, RestoreOptions(topic="nothing"))
    assert [topic.name for topic in empty.topics()] == ["other"]

    restore_backup(to_empty, folder, RestoreOptions(topic="other", new_name="other-before"))
    restore_backup(to_empty, folder, RestoreOptions(topic="orders"))

    assert [m.value for m in messages(empty, "other-before")[0]] == [b"other"]
    assert [m.value for m in messages(empty, "orders")[0]] == [b"orders"]
    assert empty.topic("other-before").id != source.topic("other").id


def test_a_topic_that_was_deleted_comes_back_into_its_own_cluster_under_another_id(
    source: quivermq.Client, from_source: BackupAccess, folder: Path
) -> None:
    """A broker that was away may still have its log, under the former id."""
    source.create_topic("orders")
    source.produce("orders", b"precious")
    before, was = messages(source, "orders"), source.topic("orders").id
    take_backup(from_source, folder)
    source.delete_topic("orders")
    restore_backup(from_source, folder, RestoreOptions(topic="orders"))
    assert messages(source, "orders") == before
    assert source.topic("orders").id != was


def test_the_folder_of_another_cluster_is_refused(
    source: quivermq.Client, from_source: BackupAccess, to_empty: BackupAccess, folder: Path
) -> None:
    source.create_topic("orders")
    take_backup(from_source, folder)
    with pytest.raises(InvalidRequest, match="use another folder"):
        take_backup(to_empty, folder)
    (folder.parent / "notes").mkdir()
    (folder.parent / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(InvalidRequest, match=r"no backup, and holds other things \(diary.txt\)"):
        take_backup(from_source, folder.parent / "notes")


def test_a_dead_letter_that_was_moved_while_the_backup_ran_is_there_once(
    source: quivermq.Client, empty: quivermq.Client, to_empty: BackupAccess, folder: Path
) -> None:
    source.create_topic("orders")

    class Slow(BackupAccess):
        """Between groups and messages, brokers go on."""

        dying = 0

        def export_groups(self, topic: str, *more: Any) -> Any:
            if topic != "orders":
                return super().export_groups(topic, *more)
            while True:
                source.produce("orders", b"bad")
                (bad,) = source.poll("orders", "work", wait=PATIENCE_S)
                bad.reject("it is bad")
                state = super().export_groups(topic, *more)
                groups = Groups.unpack(memoryview(state.commands[0].body)[1:])
                Slow.dying = len(groups.by_name["work"].dying)
                if Slow.dying:
                    return state

        def export_producers(self, *given: Any) -> Any:
            until(lambda: not self.is_moving())
            return super().export_producers(*given)

        def is_moving(self) -> bool:
            return len(source.dead_letters("orders")) < (source.topic("orders").message_count or 0)

    take_backup(Slow(source), folder)
    letters = source.dead_letters("orders")
    assert Slow.dying
    restore_backup(to_empty, folder)
    # What the groups had not noted is moved again, and recognised.
    until(lambda: empty.group("orders", "work").dead == len(letters))
    assert [letter.original_offset for letter in empty.dead_letters("orders")] == [
        letter.original_offset for letter in letters
    ]


def test_a_letter_that_goes_back_to_its_group_while_the_backup_runs_is_not_lost(
    source: quivermq.Client, empty: quivermq.Client, to_empty: BackupAccess, folder: Path
) -> None:
    source.create_topic("orders")
    source.produce("orders", b"bad")
    (bad,) = source.poll("orders", "work", wait=PATIENCE_S)
    bad.reject("it is bad")
    until(lambda: source.dead_letters("orders"))

    class Slow(BackupAccess):
        """Between the groups of two topics, brokers go on."""

        read = 0

        def export_groups(self, topic: str, *more: Any) -> Any:
            Slow.read += topic.startswith("orders")
            if Slow.read == 2:
                assert source.redrive("orders") == 1
            return super().export_groups(topic, *more)

    take_backup(Slow(source), folder)
    assert Slow.read == 2
    restore_backup(to_empty, folder)
    assert [m.value for m in empty.poll("orders", "work", wait=PATIENCE_S)] == [b"bad"]


def test_topics_come_behind_their_dead_letter_topics() -> None:
    topics: dict[str, dict[str, Any]] = {
        "a": {},
        "a.dlq": {},
        "b": {"settings": {"dead_letter": "c"}},
        "a.dlq.dlq": {},
        "c": {"settings": {"dead_letter": "b"}},
    }
    assert [name for name, _ in taking.letters_first(topics)] == [
        "a.dlq.dlq", "a.dlq", "a", "c", "b",
    ]  # fmt: skip


def test_producers_are_remembered_and_their_ids_are_given_to_nobody_else(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client,
    to_empty: BackupAccess, folder: Path,
) -> None:  # fmt: skip
    source.create_topic("orders")
    with source.producer(producer_id=77) as before:
        for n in range(3):
            before.send("orders", b"%d" % n, partition=0).result(PATIENCE_S)
    source.produce("orders", b"of another producer", partition=0)
    take_backup(from_source, folder)
    granted = empty._core  # the id of a producer is seen nowhere else
    early = run(new_producer(granted))
    restore_backup(to_empty, folder)

    assert empty.position("orders", 0, producer_id=77, epoch=0) == 3
    assert empty.stored("orders", 0, producer_id=77, epoch=0, since_ms=1) == 3
    # What it sent last, and got no answer to, is recognised.
    with empty.producer(producer_id=77, sequence=2) as again:
        assert again.send("orders", b"2", partition=0).result(PATIENCE_S).offset == 2
    known = source.topic("orders").partitions[0].end_offset
    assert empty.produce("orders", b"next", partition=0).offset == known
    assert run(new_producer(granted)) > early + PRODUCER_MARGIN


def test_a_producer_that_is_ahead_of_the_backup_goes_on(tmp_path: Path, folder: Path) -> None:
    """Its broker is gone, and another one, restored, is at the address."""
    with (
        running(tmp_path / "doomed") as doomed,
        quivermq.connect(doomed.address) as client,
        client.producer() as producer,
    ):
        client.create_topic("orders")
        access = BackupAccess(client)
        producer.send("orders", b"kept").result(PATIENCE_S)
        take_backup(access, folder)
        producer.send("orders", b"lost").result(PATIENCE_S)
        doomed.stop()
        with running(tmp_path / "reborn", listen=doomed.address):
            restore_backup(access, folder)
            producer.send("orders", b"since").result(PATIENCE_S)
            values = [message.value for message in messages(client, "orders")[0]]
            assert values == [b"kept", b"since"]


def test_a_stored_batch_that_changes_on_its_way_is_noticed(
    source: quivermq.Client, from_source: BackupAccess, empty: quivermq.Client, folder: Path
) -> None:
    source.create_topic("orders")
    for n in range(3):
        source.produce("orders", b"%d" % n)
    take_backup(from_source, folder)

    class Lying(BackupAccess):
        """Reads back something else."""

        def fetch(self, *given: Any) -> list[Frame]:
            frames = super().fetch(*given)
            header = frames[0].header._replace(timestamp_ms=frames[0].header.timestamp_ms + 1)
            return [Frame(header, frames[0].body), *frames[1:]]

    with pytest.raises(Corrupt, match="orders/0 holds"):
        restore_backup(Lying(empty), folder)
