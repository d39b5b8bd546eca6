"""A stand-in for a broker: the other side of a socket, which does as it is told.

It speaks real packets, keeps the batches it stores in memory, and recognises repeats as a broker
does. What it does with the next requests of a kind is scripted: see `StandIn.script`.
"""

import socket
import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from quivermq.batches import Buffer, Frame, Header, Offset, decode_messages
from quivermq.errors import NotLeader, OffsetOutOfRange, OutOfSequence, QuiverError, TopicNotFound
from quivermq.wire import (
    PROTOCOL,
    Receiver,
    error_to_proto,
    frames_of,
    packet,
    parse_request,
    proto,
)
from quivermq.wire.packets import CHECKED_PROTOCOL
from tests.wire.samples import unchecked

STORE, DROP, HANG, STORE_AND_DROP, STORE_AND_HANG = "store", "drop", "hang", "st+dr", "st+ha"
Action = str | QuiverError | Callable[[proto.Request], proto.Response]
TOPIC_ID = b"topic id one"


@dataclass
class Log:
    """One partition."""

    frames: list[Frame] = field(default_factory=list)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    repeats: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.frames[-1].header.next_offset if self.frames else 0

    @property
    def values(self) -> list[bytes]:
        return [message.value for frame in self.frames for message in decode_messages(frame)]

    def store(self, frame: Frame) -> tuple[int, bool]:
        header = frame.header
        who = header.producer_id, header.producer_epoch
        expected = self.sequences.get(who, 0) if header.producer_id else header.sequence
        if header.sequence > expected:
            raise OutOfSequence(f"{header.sequence}, {expected} comes next", expected=expected)
        if header.sequence < expected:
            return self.repeats[*who, header.sequence], True
        first = self.end
        index = len(self.frames) + 1
        self.frames.append(_stamped(frame, index, first))
        self.sequences[who] = header.sequence + header.count
        self.repeats[*who, header.sequence] = first
        return first, False


def _stamped(frame: Frame, index: int, offset: int) -> Frame:
    header: Header = frame.header.stamped(1, index, Offset(offset), 1_700_000_000_000)  # type: ignore[arg-type]
    return Frame(header, bytes(frame.body))


class StandIn:
    """Listens on a free port until it is closed."""

    def __init__(
        self,
        *,
        topics: dict[str, int] | None = None,
        node: int = 1,
        protocol: int = PROTOCOL,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.node = node
        self.protocol = protocol
        self.has_checksums = protocol >= CHECKED_PROTOCOL
        self.topics = {"t": 1} if topics is None else topics
        self.topic_id = TOPIC_ID
        self.logs: dict[tuple[str, int], Log] = defaultdict(Log)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.requests: list[str] = []
        self.hellos: list[proto.Hello] = []
        self.leaders: dict[int, int] = {}
        """By partition; this node leads the others."""
        self.addresses: dict[int, str] = {}
        """Of other nodes."""
        self.zones: dict[int, str] = {}
        self.metadata_leader = node
        self.is_hidden = False
        """Maps do not name its own address."""
        self._scripts: dict[str, deque[Action]] = defaultdict(deque)
        self._heard = threading.Condition()
        self._producers = 100 * node
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def script(self, kind: str, *actions: Action) -> None:
        """What to do with the next requests of this kind, one after the other."""
        self._scripts[kind].extend(actions)

    def log(self, topic: str = "t", partition: int = 0) -> Log:
        return self.logs[topic, partition]

    def count(self, kind: str) -> int:
        return self.requests.count(kind)

    def until(self, kind: str, count: int = 1) -> None:
        """Wait until so many requests of this kind have come."""
        with self._heard:
            assert self._heard.wait_for(lambda: self.count(kind) >= count, 10)

    def drop_all(self) -> None:
        """Close every connection, but go on listening."""
        for sock in list(self._sockets):
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.add(sock)
                self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        receiver = Receiver(64 << 20)
        try:
            if self._tls is not None:
                self._sockets.discard(sock)
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._sockets.add(sock)
            with sock:
                while count := sock.recv_into(receiver.get_buffer()):
                    for found in receiver.received(count):
                        request = parse_request(found.envelope)
                        if not self._answer(sock, request, frames_of(found)):
                            return
        except OSError:
            pass
        finally:
            self._sockets.discard(sock)

    def _answer(self, sock: socket.socket, request: proto.Request, frames: list[Frame]) -> bool:
        """False: the connection ends here."""
        kind = request.WhichOneof("body") or ""
        with self._heard:
            self.requests.append(kind)
            self._heard.notify_all()
            script = self._scripts[kind]
            action = script.popleft() if script else STORE
            sent: Sequence[Frame] = ()
            if isinstance(action, QuiverError):
                response = proto.Response(error=error_to_proto(action))
            elif callable(action):
                response = action(request)
            elif action in {DROP, HANG}:
                return action == HANG
            else:
                try:
                    response, sent = self._handled(kind, request, frames)
                except QuiverError as error:
                    response = proto.Response(error=error_to_proto(error))
                if action in {STORE_AND_DROP, STORE_AND_HANG}:
                    return action == STORE_AND_HANG
        if kind == "cancel":
            return True
        response.id = request.id
        envelope = response.SerializeToString()
        buffers: Sequence[Buffer] = packet(envelope, sent)
        if not self.has_checksums:
            buffers = [unchecked(envelope, b"".join(map(bytes, sent)))]
        for buffer in buffers:
            sock.sendall(buffer)
        return True

    def _handled(
        self, kind: str, request: proto.Request, frames: list[Frame]
    ) -> tuple[proto.Response, Sequence[Frame]]:
        found = getattr(self, f"_on_{kind}")(request, frames)
        return found if isinstance(found, tuple) else (found, ())

    def _on_hello(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        self.hellos.append(request.hello)
        return proto.Response(welcome=proto.Welcome(protocol=self.protocol, version="9.9"))

    def _on_ping(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        return proto.Response(done=proto.Done())

    _on_cancel = _on_ping

    def _on_new_producer(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        self._producers += 1
        return proto.Response(producer_granted=proto.ProducerGranted(producer_id=self._producers))

    def _on_map(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        own = {} if self.is_hidden else {self.node: self.address}
        brokers = [
            proto.Broker(id=node, address=address, alive=True, zone=self.zones.get(node, ""))
            for node, address in {**own, **self.addresses}.items()
        ]
        topics = [
            self._topic_map(name, count)
            for name, count in self.topics.items()
            if name in request.map.topics
        ]
        found = proto.ClusterMap(
            brokers=brokers,
            topics=topics,
            node=self.node,
            leader=self.metadata_leader,
            version=1,
        )
        return proto.Response(map=found)

    def _topic_map(self, name: str, count: int) -> proto.TopicMap:
        places = [
            proto.PartitionMap(
                partition=number,
                leader=self._leader(number),
                replicas=sorted({self.node, *self.addresses}),
            )
            for number in range(count)
        ]
        return proto.TopicMap(name=name, id=self.topic_id, replication=1, partitions=places)

    def _leader(self, partition: int) -> int:
        return self.leaders.get(partition, self.node)

    def _log_of(self, request: proto.Request, body: proto.Produce | proto.Fetch) -> Log:
        if body.topic not in self.topics or body.topic_id not in {b"", self.topic_id}:
            raise TopicNotFound(f"there is no topic {body.topic!r}")
        leader = self._leader(body.partition)
        if request.direct and leader != self.node and not getattr(body, "follower_ok", False):
            address = self.addresses.get(leader, "")
            raise NotLeader("another broker leads", leader=leader, leader_address=address)
        return self.logs[body.topic, body.partition]

    def _on_produce(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        log = self._log_of(request, request.produce)
        response = proto.Response()
        response.produced.SetInParent()
        for frame in frames:
            first, is_repeat = log.store(frame)
            response.produced.batches.add(
                first_offset=first, count=frame.header.count, is_repeat=is_repeat
            )
        return response

    def _on_fetch(
        self, request: proto.Request, frames: list[Frame]
    ) -> tuple[proto.Response, Sequence[Frame]]:
        log = self._log_of(request, request.fetch)
        offset = request.fetch.offset
        if offset > log.end:
            raise OffsetOutOfRange(f"{offset} is not there", earliest=0, end=log.end)
        found = [frame for frame in log.frames if frame.header.next_offset > offset][:2]
        after = found[-1].header.next_offset if found else offset
        return proto.Response(fetched=proto.Fetched(next_offset=after, end_offset=log.end)), found

    def _on_find_offset(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        log = self._log_of(request, request.find_offset)  # type: ignore[arg-type]
        offset = 0 if request.find_offset.earliest else log.end
        return proto.Response(offset_found=proto.OffsetFound(offset=offset))

    def _on_commit_offset(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        body = request.commit_offset
        self.offsets[body.topic, body.group, body.partition] = body.offset
        return proto.Response(done=proto.Done())
