"""What is fuzzed: samples that are right, and what reads them."""

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from quivermq.batches import Frame, FrameKind, decode_messages, encode_batch
from quivermq.cli.configuration import load as load_settings
from quivermq.cli.errors import UsageError
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.log import Log, LogSettings
from quivermq.node.mirrored_file import MirroredFile
from quivermq.node.peer_codec import UnknownMail, decode_mail, encode_mail
from quivermq.pipelines.loading import parse as parse_pipeline
from quivermq.queue import Partition
from quivermq.raft import Configuration, Message, MessageKind
from quivermq.replica import Consensus, Mail, ReplicaState, Rouse
from quivermq.spark.source.offsets import from_json
from quivermq.spark.source.options import ReadOptions
from quivermq.testing.simulated_disk import SimulatedDisk
from quivermq.wire import (
    Receiver,
    frames_of,
    packet,
    parse_peer_packet,
    parse_request,
    parse_response,
    proto,
)
from tests.log.entries import LOG_ID
from tests.replica.group import Group

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """Something that reads what comes from outside."""

    samples: Callable[[], list[bytes]]
    read: Callable[[bytes], None]
    errors: tuple[type[Exception], ...] = (QuiverError,)
    """What it may raise."""


def _frames() -> list[Frame]:
    return [
        encode_batch([b"one"]),
        encode_batch([b"one", b"", b"three" * 100], keys=[b"k", None, b"l"]),
        encode_batch([b"x" * 50] * 200, compression="zstd"),
    ]


# Packets, as a broker and a client receive them.


def _packets() -> list[bytes]:
    hello = proto.Request(id=1, hello=proto.Hello(protocol=2, protocol_min=1, client="fuzz"))
    produce = proto.Request(id=2, produce=proto.Produce(topic="orders", partition=1))
    poll = proto.Request(id=3, poll=proto.Poll(topic="orders", group="g", messages_max=10))
    stored = proto.Response(id=2, produced=proto.Produced(batches=[proto.Stored(count=1)]))
    return [
        b"".join(map(bytes, packet(hello.SerializeToString()))),
        b"".join(map(bytes, packet(produce.SerializeToString(), _frames()))),
        b"".join(map(bytes, packet(poll.SerializeToString()) + packet(stored.SerializeToString()))),
    ]


def _read_packets(data: bytes) -> None:
    receiver = Receiver(1 << 20, 1 << 20, 1 << 18)
    left = memoryview(data)
    while left:
        buffer = receiver.get_buffer()
        size = min(len(buffer), len(left))
        buffer[:size] = left[:size]
        left = left[size:]
        for found in receiver.received(size):
            frames_of(found)
            for parse in (parse_request, parse_response):
                with suppress(InvalidRequest):
                    parse(found.envelope)


def _peer_packets() -> list[bytes]:
    mails: list[Mail] = [
        Rouse(),
        Consensus(Message(MessageKind.HEARTBEAT, 1, 2, 3)),
        Consensus(Message(MessageKind.VOTE, 1, 2, 3, 4, 5)),
    ]
    messages = [encode_mail(bytes(16), 2, 1, mail)[0] for mail in mails]
    return [
        proto.PeerPacket(peer_messages=[message]).SerializeToString() for message in messages
    ] + [proto.PeerPacket(peer_messages=messages, alive=True, clock_ms=7).SerializeToString()]


def _read_peer_packet(data: bytes) -> None:
    for message in parse_peer_packet(data).peer_messages:
        decode_mail(message, _frames()[: message.frames])


# Batches.


def _read_frames(data: bytes) -> None:
    for frame in Frame.parse_all(memoryview(data)):
        if frame.header.kind == FrameKind.DATA:
            decode_messages(frame)


# Files of a data directory.


def _checkpoints() -> list[bytes]:
    """Of a partition that is new, and of one with producers and a group that has leases."""
    group = Group(1)
    leader = group.leader()
    for _ in range(20):
        group.produce(leader)
    leader.replica.with_leases(
        lambda leases: leases.working_copy.commit("g", 3), None, group.now_ms, group.now_ms
    )
    group.settle()
    used = leader.replica.checkpoint
    new = ReplicaState(Configuration(voters=(1, 2)), Partition()).pack()
    return [new, used.data] if used else [new]


def _read_checkpoint(data: bytes) -> None:
    ReplicaState.unpack(data)


_SMALL = LogSettings(segment_bytes=4 << 10, allocation_bytes_min=1 << 10)
_FOLDER = "log/orders/0"


def _segments() -> list[bytes]:
    group = Group(1)
    leader = group.leader()
    for _ in range(12):
        group.produce(leader)
    disk = leader.disk
    return [disk.content(path) for path in disk.paths()]


def _read_log(data: bytes) -> None:
    """Any file of a log holds these bytes: which one, they decide themselves."""
    disk = SimulatedDisk(Random(1))
    log = Log.create(disk, _FOLDER, LOG_ID, _SMALL)
    del log
    paths = disk.paths()
    disk.replace_content(paths[sum(data[:2]) % len(paths)], data)
    opened = Log.open(disk, _FOLDER, _SMALL)
    if not opened.damage:
        list(opened.frames(opened.first_index))


def _mirrored() -> list[bytes]:
    disk = SimulatedDisk(Random(1))
    MirroredFile("logs").write(disk, {"00" * 16: {"folder": "log/orders/0", "member": 1}})
    return [disk.content("logs.json")]


def _read_mirrored(data: bytes) -> None:
    disk = SimulatedDisk(Random(1))
    MirroredFile("logs").write(disk, {})
    for name in ("logs.json", "logs.copy.json"):
        disk.replace_content(name, data)
    MirroredFile("logs").read(disk)


# Texts of people, and of Spark.


def _settings() -> list[bytes]:
    return [
        b'node_id = 2\nlisten = "127.0.0.1:7600"\nfsync = "always"\n[peers]\n1 = "a:7700"\n',
        b"tick_ms = 50\nsegment_bytes = 1_000_000\nauto_create_topics = true\n",
    ]


def _read_settings(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        load_settings({}, Path(file.name))


def _pipelines() -> list[bytes]:
    return [path.read_bytes() for path in (ROOT / "examples" / "pipelines").glob("*.toml")]


def _read_pipeline(data: bytes) -> None:
    parse_pipeline(data.decode(errors="replace"), Path("fuzz.toml"))


def _checkpointed_offsets() -> list[bytes]:
    return [
        b'{"orders": {"0": 12, "1": 7, "id": "5f0c"}}',
        b'{"orders": {"0": 12, "began": {"0": 3}, "id": "5f0c"}, "more": {"id": ""}}',
    ]


def _read_checkpointed_offsets(data: bytes) -> None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return  # Spark reads the JSON.
    if isinstance(found, dict):
        from_json(found)


def _read_starting_offsets(data: bytes) -> None:
    text = data.decode(errors="replace")
    given = {"servers": "a:1", "subscribe": "orders", "startingOffsets": text}
    ReadOptions.of(given, is_stream=True)


TARGETS = {
    "packet": Target(_packets, _read_packets),
    "peer": Target(_peer_packets, _read_peer_packet, (QuiverError, UnknownMail)),
    "frame": Target(lambda: [bytes(frame) for frame in _frames()], _read_frames),
    "checkpoint": Target(_checkpoints, _read_checkpoint),
    "log": Target(_segments, _read_log),
    "mirrored_file": Target(_mirrored, _read_mirrored),
    "settings": Target(_settings, _read_settings, (QuiverError, UsageError)),
    "pipeline": Target(_pipelines, _read_pipeline),
    "checkpointed_offsets": Target(_checkpointed_offsets, _read_checkpointed_offsets),
    "starting_offsets": Target(
        lambda: [b'{"orders": {"0": 12, "1": -2}}', b"earliest"], _read_starting_offsets
    ),
}
