"""The worst that each kind of request may ask for: what it costs, and how large its answer is.

One broker with 100 partitions, several groups, many small batches, many delayed and many dead
messages. Every kind of request of the protocol has its place here, or a test fails.
"""

import asyncio
import json
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from quivermq.batches import Frame, Origin, encode_batch
from quivermq.wire import BROKER_ENVELOPE_BYTES_MAX, proto
from quivermq.wire.limits import FRAMES_MAX, ITEMS_MAX
from tests.conftest import STALL_BUDGET
from tests.node.cluster_stage import Brokers
from tests.transports.stage import PATIENCE_S, PATIENT, Talker, on_loop, serving, until
from tests.wire.test_limits import filled, kinds

TOPIC = "t"
PARTITIONS = 100
GROUPS = ("a", "b", "c")
SMALL_BATCHES = 10 * FRAMES_MAX
DELAYED = 4 * FRAMES_MAX
CALLBACK_S = 0.2
BATCHES_BYTES_MAX = 33 << 20
MEMORY_BYTES_MAX = 256 << 20

ONE = encode_batch([b"x"])
LONG = "x" * 900_000


def numbers(count: int) -> list[int]:
    """Partition numbers, each again and again."""
    return [n % PARTITIONS for n in range(count)]


def intervals(count: int) -> list[proto.Interval]:
    return [proto.Interval(start=2 * n, end=2 * n + 1) for n in range(count)]


class Worst(NamedTuple):
    """A request, with the errors that are as good as an answer."""

    request: proto.Request
    errors: Sequence[str] = ()
    frames: Sequence[Frame] = ()


def most(path: str) -> int:
    return ITEMS_MAX[path]


def wide(name: str, **more: object) -> dict[str, object]:
    """A request of a consumer of a shared group, for all partitions a hundred times."""
    asked = numbers(most(f"{name}.partitions"))
    return {"topic": TOPIC, "group": "a", "consumer": 7, "partitions": asked, **more}


def of_topics() -> dict[str, list[Worst]]:
    names = [TOPIC] * most("map.topics")
    unknown = [f"unknown-{n}-{'x' * 180}" for n in range(most("map.topics"))]
    partitions = [
        proto.PartitionName(topic=TOPIC, partition=n)
        for n in numbers(most("describe_partitions.partitions"))
    ]
    return {
        "map": [
            Worst(proto.Request(map=proto.MapQuery(topics=names))),
            Worst(proto.Request(map=proto.MapQuery(topics=unknown, auto_create=True))),
            Worst(proto.Request(map=proto.MapQuery())),
        ],
        "create_topic": [
            Worst(proto.Request(create_topic=proto.CreateTopic(name=LONG)), ["TooLarge"]),
            Worst(
                proto.Request(create_topic=proto.CreateTopic(name="u", partitions=(1 << 32) - 1)),
                ["InvalidRequest", "TooLarge"],
            ),
        ],
        "alter_topic": [
            Worst(
                proto.Request(alter_topic=proto.AlterTopic(name=TOPIC, partitions=(1 << 32) - 1)),
                ["InvalidRequest", "TooLarge"],
            )
        ],
        "delete_topic": [
            Worst(proto.Request(delete_topic=proto.DeleteTopic(name=LONG)), ["TooLarge"])
        ],
        "describe_topics": [
            Worst(proto.Request(describe_topics=proto.DescribeTopics(topics=names))),
            Worst(proto.Request(describe_topics=proto.DescribeTopics())),
        ],
        "describe_partitions": [
            Worst(
                proto.Request(describe_partitions=proto.DescribePartitions(partitions=partitions))
            )
        ],
    }


def of_messages() -> dict[str, list[Worst]]:
    positions = [proto.Position(partition=n) for n in numbers(most("list_offsets.positions"))]
    asked = numbers(most("committed_offsets.partitions"))
    fetch = proto.Fetch(topic=TOPIC, bytes_max=(1 << 32) - 1)
    found = proto.FindOffset(topic=TOPIC, timestamp_ms=1)
    return {
        "new_producer": [Worst(proto.Request(new_producer=proto.NewProducer()))],
        "produce": [
            Worst(
                proto.Request(produce=proto.Produce(topic=TOPIC, partition=3)),
                ["Overloaded"],
                [ONE] * FRAMES_MAX,
            ),
            Worst(
                proto.Request(produce=proto.Produce(topic=TOPIC, partition=3)),
                ["TooLarge"],
                [ONE] * 50_000,
            ),
        ],
        "fetch": [Worst(proto.Request(fetch=fetch))],
        "find_offset": [Worst(proto.Request(find_offset=found))],
        "list_offsets": [
            Worst(proto.Request(list_offsets=proto.ListOffsets(topic=TOPIC, positions=positions))),
            Worst(
                proto.Request(
                    list_offsets=proto.ListOffsets(
                        topic=TOPIC, positions=[proto.Position(partition=99_999)]
                    )
                ),
                ["InvalidRequest"],
            ),
        ],
        "commit_offset": [
            Worst(proto.Request(commit_offset=proto.CommitOffset(topic=TOPIC, group="k", offset=1)))
        ],
        "committed_offsets": [
            Worst(
                proto.Request(
                    committed_offsets=proto.CommittedOffsets(
                        topic=TOPIC, group="a", partitions=asked
                    )
                )
            )
        ],
        "claim": [
            Worst(
                proto.Request(claim=proto.Claim(topic=TOPIC, group="s", epoch=1)),
                ["InvalidRequest"],
            )
        ],
    }


def of_groups() -> dict[str, list[Worst]]:
    poll = proto.Poll(**wide("poll", messages_max=100_000, bytes_max=(1 << 32) - 1))
    settlements = [proto.Settlement(lease=n + 1) for n in range(most("settle.settlements"))]
    one = proto.Settlement(lease=1, intervals=intervals(10_000))
    every = intervals(most("redrive.intervals"))
    delayed = proto.CancelDelayed(topic=TOPIC, partition=1, intervals=every)
    redrive = proto.Redrive(topic=TOPIC, partition=2, intervals=every)
    chosen = proto.Redrive(topic=TOPIC, partition=2, filter=proto.LetterFilter(reason=LONG))
    pieces = [proto.RevivedPiece(start=2 * n, count=1) for n in range(most("revive.pieces"))]
    revive = proto.Revive(topic=TOPIC, partition=2, group="a", redrive=1, pieces=pieces)
    return {
        "await_ready": [Worst(proto.Request(await_ready=proto.AwaitReady(**wide("await_ready"))))],
        "poll": [Worst(proto.Request(poll=poll))],
        "settle": [
            Worst(
                proto.Request(settle=proto.Settle(topic=TOPIC, group="a", settlements=settlements))
            ),
            Worst(proto.Request(settle=proto.Settle(topic=TOPIC, group="a", settlements=[one]))),
        ],
        "release_consumer": [
            Worst(proto.Request(release_consumer=proto.ReleaseConsumer(**wide("release_consumer"))))
        ],
        "describe_groups": [
            Worst(proto.Request(describe_groups=proto.DescribeGroups(topic=TOPIC))),
            Worst(
                proto.Request(
                    describe_groups=proto.DescribeGroups(topic=TOPIC, group="a", leases=2**32 - 1)
                )
            ),
        ],
        "list_delayed": [
            Worst(
                proto.Request(
                    list_delayed=proto.ListDelayed(topic=TOPIC, partition=1, limit=(1 << 32) - 1)
                )
            )
        ],
        "cancel_delayed": [Worst(proto.Request(cancel_delayed=delayed))],
        "redrive": [Worst(proto.Request(redrive=redrive), ["InvalidRequest"])],
        "redrive_to": [
            Worst(proto.Request(redrive_to=redrive), ["InvalidRequest"]),
            Worst(proto.Request(redrive_to=chosen), ["InvalidRequest"]),
        ],
        "revive": [Worst(proto.Request(revive=revive))],
        "list_dead": [Worst(proto.Request(list_dead=proto.ListDead(topic=TOPIC, partition=2)))],
        "take_tokens": [
            Worst(
                proto.Request(take_tokens=proto.TakeTokens(topic=TOPIC, wanted=(1 << 32) - 1)),
                ["InvalidRequest"],
            )
        ],
        "seek_group": [
            Worst(proto.Request(seek_group=proto.SeekGroup(topic=TOPIC, group="a", timestamp_ms=1)))
        ],
        "delete_group": [
            Worst(proto.Request(delete_group=proto.DeleteGroup(topic=TOPIC, group="a")))
        ],
        "sticky_beat": [
            Worst(
                proto.Request(
                    sticky_beat=proto.StickyBeat(
                        topic=TOPIC,
                        group="s",
                        member=9,
                        member_name=LONG,
                        released=numbers(most("sticky_beat.released")),
                    )
                )
            )
        ],
        "describe_sticky": [
            Worst(proto.Request(describe_sticky=proto.DescribeSticky(topic=TOPIC)))
        ],
    }


def of_operating() -> dict[str, list[Worst]]:
    registration = proto.RegisterBroker(
        id=2, lives=[b"x" * 16] * most("register_broker.lives"), address=LONG[:500_000]
    )
    addresses = [f"127.0.0.1:{n}" for n in [1] * most("bootstrap.addresses")]
    members = proto.Reconfigure(topic=TOPIC, members=range(1, most("reconfigure.members") + 1))
    return {
        "hello": [Worst(filled("hello.features", most("hello.features")), ["UnsupportedFormat"])],
        "cancel": [],
        "ping": [Worst(proto.Request(ping=proto.Ping()))],
        "stats": [Worst(proto.Request(stats=proto.Stats()))],
        "bootstrap": [
            Worst(
                proto.Request(bootstrap=proto.Bootstrap(addresses=addresses)),
                ["ConnectionFailed", "Timeout"],
            )
        ],
        "join_cluster": [
            Worst(proto.Request(join_cluster=proto.JoinCluster(address=LONG)), ["InvalidRequest"])
        ],
        "register_broker": [
            Worst(proto.Request(register_broker=registration), ["Forbidden", "InvalidRequest"])
        ],
        "remove_broker": [
            Worst(proto.Request(remove_broker=proto.RemoveBroker(id=99)), ["InvalidRequest"])
        ],
        "replace_broker": [
            Worst(proto.Request(replace_broker=proto.ReplaceBroker(id=1)), ["InvalidRequest"])
        ],
        "rebalance": [Worst(proto.Request(rebalance=proto.Rebalance()))],
        "transfer": [
            Worst(proto.Request(transfer=proto.Transfer(topic=TOPIC, to=99)), ["InvalidRequest"])
        ],
        "reconfigure": [Worst(proto.Request(reconfigure=members), ["InvalidRequest"])],
        "upgrade_cluster": [
            Worst(
                proto.Request(upgrade_cluster=proto.UpgradeCluster(to=(1 << 32) - 1)),
                ["InvalidRequest", "UnsupportedFormat"],
            )
        ],
        "set_log_level": [
            Worst(proto.Request(set_log_level=body), ["InvalidRequest"])
            for body in (
                proto.SetLogLevel(logger=LONG, level="debug"),
                proto.SetLogLevel(level=LONG),
            )
        ],
    }


def of_users() -> dict[str, list[Worst]]:
    grant, name = proto.Grant(action="consume", topic=LONG), proto.Grant(action=LONG)
    wrong = ["InvalidRequest", "TooLarge"]
    return {
        "prove": [],
        "add_user": [
            Worst(proto.Request(add_user=proto.AddUser(name=LONG)), wrong),
            Worst(proto.Request(add_user=proto.AddUser(name="bob"))),
        ],
        "grant_user": [
            Worst(proto.Request(grant_user=proto.GrantUser(name="bob", grant=grant)), wrong),
            Worst(proto.Request(grant_user=proto.GrantUser(name="bob", grant=name)), wrong),
        ],
        "revoke_user": [
            Worst(proto.Request(revoke_user=proto.RevokeUser(name="bob", grant=grant)), wrong)
        ],
        "remove_user": [Worst(proto.Request(remove_user=proto.RemoveUser(name=LONG)), wrong)],
        "list_users": [Worst(proto.Request(list_users=proto.ListUsers()))],
        "list_user_records": [
            Worst(
                proto.Request(
                    list_user_records=proto.ListUserRecords(fingerprint=LONG.encode()),
                ),
                ["Forbidden"],
            )
        ],
    }


def of_backups() -> dict[str, list[Worst]]:
    exported = proto.ExportPartition(topic=TOPIC, partition=2, groups=True, producers=True)
    wide_record = json.dumps({"id": "0" * 24, "settings": {}, "starts": [0] * 300_000}).encode()
    restored = proto.RestoreFrames(topic=TOPIC, partition=3)
    wrong = ["InvalidRequest", "TooLarge"]
    return {
        "export_catalog": [Worst(proto.Request(export_catalog=proto.ExportCatalog()))],
        "export_partition": [Worst(proto.Request(export_partition=exported))],
        "restore_catalog": [
            Worst(proto.Request(restore_catalog=proto.RestoreCatalog(content=nested)), wrong)
            for nested in (b"[" * 900_000, LONG.encode(), b"{}")
        ],
        "restore_topic": [
            Worst(
                proto.Request(
                    restore_topic=proto.RestoreTopic(name="r", backup="b", record=wide_record)
                ),
                wrong,
            )
        ],
        "restore_frames": [
            Worst(proto.Request(restore_frames=restored), wrong, [ONE] * FRAMES_MAX)
        ],
        "finish_restore": [
            Worst(proto.Request(finish_restore=proto.FinishRestore(topic=TOPIC))),
        ],
    }


WORST: dict[str, list[Worst]] = {
    **of_backups(),
    **of_topics(),
    **of_users(),
    **of_messages(),
    **of_groups(),
    **of_operating(),
}


def test_every_kind_of_request_is_here() -> None:
    assert {kind.name for kind in kinds()} == set(WORST)


async def fill(talker: Talker) -> None:
    """What makes requests expensive."""
    creation = proto.CreateTopic(name=TOPIC, partitions=PARTITIONS)
    await good(talker, proto.Request(id=2, create_topic=creation))
    late = encode_batch([b"x"], origin=Origin(not_before_ms=4_000_000_000_000))
    for partition, frame, count in ((0, ONE, SMALL_BATCHES), (1, late, DELAYED), (2, ONE, 2_000)):
        for _ in range(0, count, 500):
            body = proto.Produce(topic=TOPIC, partition=partition)
            await good(talker, proto.Request(id=3, produce=body), *[frame] * 500)
    for group in GROUPS:
        ready = proto.AwaitReady(topic=TOPIC, group=group, partitions=range(PARTITIONS))
        await good(talker, proto.Request(id=4, await_ready=ready))
    purge = proto.Redrive(topic=TOPIC, partition=2, intervals=intervals(1_000), purge=True)
    await good(talker, proto.Request(id=5, redrive=purge))


async def good(talker: Talker, request: proto.Request, *frames: Frame) -> None:
    answer = await talker.ask(request, *frames)
    assert answer.WhichOneof("body") != "error", answer


async def measure(talker: Talker, worst: Worst, number: int) -> tuple[proto.Response, str]:
    """Ask for it; returns the answer, and what was wrong with it."""
    worst.request.id = number
    STALL_BUDGET.longest_s = 0.0
    talker.batches_bytes = 0
    answer = await talker.ask(worst.request, *worst.frames)
    await asyncio.sleep(0.01)
    kind, size = worst.request.WhichOneof("body"), answer.ByteSize()
    cost = (
        f"{kind} of {worst.request.ByteSize():,} bytes: answer of {size:,} + "
        f"{talker.batches_bytes:,} bytes, longest callback {STALL_BUDGET.longest_s * 1e3:.0f} ms"
    )
    print(cost)
    is_fine = (
        STALL_BUDGET.longest_s <= CALLBACK_S
        and size <= BROKER_ENVELOPE_BYTES_MAX
        and talker.batches_bytes <= BATCHES_BYTES_MAX
    )
    if answer.WhichOneof("body") == "error" and answer.error.code not in worst.errors:
        return answer, f"{cost}: {answer.error.code}: {answer.error.message[:200]}"
    return answer, "" if is_fine else cost


@on_loop
async def test_no_request_holds_the_loop_or_is_answered_without_bound(tmp_path: Path) -> None:
    changes = {**PATIENT, "auto_create_topics": False}
    async with serving(tmp_path, **changes) as server:
        talker = await Talker.by_socket(server)
        await fill(talker)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        troubles = []
        for number, worst in enumerate((w for kind in WORST.values() for w in kind), 100):
            if worst.request.WhichOneof("body") == "hello":
                continue
            _, trouble = await measure(talker, worst, number)
            troubles += [trouble] if trouble else []
        talker.close()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        assert not troubles, "\n" + "\n".join(troubles)
        assert grown < MEMORY_BYTES_MAX


@pytest.mark.parametrize("path", [path for path in ITEMS_MAX if path != "hello.features"])
@on_loop
async def test_more_than_may_be_asked_is_refused_at_once(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        request = filled(path, most(path) + 1)
        request.id = 5
        answer = await talker.ask(request)
        assert answer.error.code == "TooLarge", answer
        assert f"{most(path):,}" in answer.error.message
        talker.close()


def asked_of(names: Sequence[str]) -> list[proto.Request]:
    partitions = [proto.PartitionName(topic=name) for name in names]
    return [
        proto.Request(id=10, map=proto.MapQuery(topics=names)),
        proto.Request(id=11, describe_topics=proto.DescribeTopics(topics=names)),
        proto.Request(id=12, describe_partitions=proto.DescribePartitions(partitions=partitions)),
    ]


@on_loop
async def test_what_is_repeated_is_answered_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        for name in ("a", "b"):
            await good(talker, proto.Request(id=2, create_topic=proto.CreateTopic(name=name)))
        for once, often in zip(asked_of(["a", "b"]), asked_of(["a", "b"] * 500), strict=True):
            answer = await talker.ask(once)
            assert answer.WhichOneof("body") != "error"
            assert await talker.ask(often) == answer
        talker.close()


@on_loop
async def test_a_map_shows_the_current_leaders(tmp_path: Path) -> None:
    """What was drawn of a topic is kept, but not beyond a change of its leaders or settings."""
    brokers = Brokers(tmp_path, 3, **PATIENT)
    try:
        await brokers.start(1, 2, 3)
        servers = list(brokers.running.values())
        await until(lambda: all(server.broker.is_ready for server in servers))
        talker = await Talker.by_socket(servers[0])
        creation = proto.CreateTopic(name=TOPIC, partitions=1, replication=3)
        await good(talker, proto.Request(id=2, create_topic=creation))
        for node in (1, 2, 3):
            transfer = proto.Transfer(topic=TOPIC, to=node)
            # It is offered once; a broker that is behind by then says that it may be tried again.
            answer = await talker.ask(proto.Request(id=3, transfer=transfer))
            while answer.WhichOneof("body") == "error":
                assert answer.error.retriable, answer
                answer = await talker.ask(proto.Request(id=3, transfer=transfer))

            async def leader() -> int:
                answer = await talker.ask(proto.Request(id=4, map=proto.MapQuery()))
                return answer.map.topics[0].partitions[0].leader

            async with asyncio.timeout(PATIENCE_S):
                while await leader() != node:  # noqa: ASYNC110  (it hears of it in a moment)
                    await asyncio.sleep(0.02)
        settings = proto.TopicSettings(retention_ms=12_345)
        altered = proto.AlterTopic(name=TOPIC, settings=settings)
        await good(talker, proto.Request(id=5, alter_topic=altered))
        answer = await talker.ask(proto.Request(id=6, map=proto.MapQuery()))
        assert answer.map.topics[0].settings.retention_ms == 12_345
        talker.close()
    finally:
        await brokers.stop(*brokers.running)


ALL_AT_ONCE: list[Callable[[], proto.Request]] = [
    lambda: proto.Request(describe_topics=proto.DescribeTopics()),
    lambda: proto.Request(map=proto.MapQuery()),
    lambda: proto.Request(describe_groups=proto.DescribeGroups(topic=TOPIC)),
]


@on_loop
async def test_many_long_answers_at_once_take_turns(tmp_path: Path) -> None:
    """However many ask for much, whoever asks for little is answered between two slices."""
    async with serving(tmp_path, **PATIENT) as server:
        talker, other = await Talker.by_socket(server), await Talker.by_socket(server)
        await fill(talker)
        loop = asyncio.get_running_loop()
        STALL_BUDGET.longest_s = 0.0
        for number in range(150):
            request = ALL_AT_ONCE[number % len(ALL_AT_ONCE)]()
            request.id = 1_000 + number
            talker.say(request)
        waits = []
        for number in range(20):
            asked = loop.time()
            await other.ask(proto.Request(id=10 + number, stats=proto.Stats()))
            waits.append(loop.time() - asked)
        for number in range(150):
            await talker.hear(1_000 + number)
        assert STALL_BUDGET.longest_s < CALLBACK_S
        assert sorted(waits)[len(waits) // 2] < 1.0, waits
        talker.close()
        other.close()
