"""Blocking connections: handshake, time limits, lost brokers, threads."""

import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

import quivermq
from quivermq.batches import Buffer, encode_batch
from quivermq.client.blocking_transport import BlockingConnection, BlockingTransport
from quivermq.client.transport import run
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    Timeout,
    Unauthenticated,
    UnsupportedFormat,
)
from quivermq.wire import packet, proto
from quivermq.wire.packets import JOINED_BYTES_MAX
from tests.client.stand_in import HANG, STORE_AND_HANG, StandIn


@pytest.fixture
def transport() -> Iterator[BlockingTransport]:
    made = BlockingTransport(token="secret", tls=None, client_name="test")
    yield made
    run(made.close())


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def ping() -> proto.Request:
    return proto.Request(ping=proto.Ping())


def asked(connection: BlockingConnection, request: proto.Request, seconds: float = 10.0) -> str:
    number = run(connection.post(request, (), soon(seconds)))
    return run(connection.take(number, soon(seconds))).response.WhichOneof("body") or ""


def test_the_hello_names_client_version_and_token(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    transport.release(connection)
    (hello,) = stand_in.hellos
    assert (hello.client, hello.token) == ("test", "secret")
    assert hello.version == quivermq.__version__


def test_a_broker_of_another_protocol_is_named(transport: BlockingTransport) -> None:
    with (
        StandIn(protocol=99) as stranger,
        pytest.raises(UnsupportedFormat, match=r"release 9\.9.* protocol 99"),
    ):
        run(transport.connection(stranger.address, soon()))


def test_what_the_hello_is_refused_with_is_raised(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    stand_in.script("hello", Unauthenticated("who are you?"))
    with pytest.raises(Unauthenticated, match="who are you"):
        run(transport.connection(stand_in.address, soon()))


def test_connecting_to_a_closed_port_fails(transport: BlockingTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConnectionFailed, match=address):
        run(transport.connection(address, soon()))


def test_an_idle_connection_is_used_again(stand_in: StandIn, transport: BlockingTransport) -> None:
    for _ in range(3):
        connection = run(transport.connection(stand_in.address, soon()))
        assert asked(connection, ping()) == "done"
        transport.release(connection)
    assert len(stand_in.hellos) == 1


def test_two_callers_at_a_time_have_two_connections(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    first = run(transport.connection(stand_in.address, soon()))
    second = run(transport.connection(stand_in.address, soon()))
    assert first is not second
    transport.release(first)
    transport.release(second)


def test_answers_are_matched_by_id_in_any_order(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    numbers = [run(connection.post(ping(), (), soon())) for _ in range(3)]
    for number in reversed(numbers):
        assert run(connection.take(number, soon())).response.id == number
    transport.release(connection)
    assert run(transport.connection(stand_in.address, soon())) is connection
    transport.release(connection)
    connection.close()


def test_a_silent_broker_is_left_when_the_time_is_over(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    stand_in.script("ping", HANG)
    began = time.monotonic()
    with pytest.raises(Timeout):
        asked(connection, ping(), seconds=0.1)
    assert 0.05 < time.monotonic() - began < 5
    assert not connection.is_open


def test_a_connection_that_still_owes_an_answer_is_not_lent_out(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    stand_in.script("ping", HANG)
    run(connection.post(ping(), (), soon()))
    transport.release(connection)
    assert not connection.is_open


def test_a_connection_that_the_broker_closed_while_idle_is_replaced(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    transport.release(connection)
    stand_in.drop_all()
    connection.used_at = -1e9  # idle for long
    while connection.is_alive(time.monotonic()):
        time.sleep(0.001)
    other = run(transport.connection(stand_in.address, soon()))
    assert other is not connection
    assert asked(other, ping()) == "done"
    transport.release(other)


def test_a_connection_that_breaks_midway_fails_its_requests(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    stand_in.script("ping", STORE_AND_HANG)
    number = run(connection.post(ping(), (), soon()))
    stand_in.drop_all()
    with pytest.raises(ConnectionFailed):
        run(connection.take(number, soon()))


@pytest.mark.parametrize(
    "nonsense", [struct.pack(">II", 0xFFFFFFFF, 4), struct.pack(">II", 8, 4) + b"\xff" * 4, b"GET"]
)
def test_an_answer_that_is_nonsense_ends_the_connection(
    nonsense: bytes, transport: BlockingTransport
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(nonsense)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionFailed):
            run(transport.connection(f"127.0.0.1:{listener.getsockname()[1]}", soon()))
        thread.join()


def test_large_batches_pass_whole(stand_in: StandIn, transport: BlockingTransport) -> None:
    connection = run(transport.connection(stand_in.address, soon()))
    frame = encode_batch([bytes([n]) * 100_000 for n in range(50)])
    request = proto.Request(produce=proto.Produce(topic="t"))
    number = run(connection.post(request, (frame,), soon()))
    assert run(connection.take(number, soon())).response.produced.batches[0].count == 50
    assert bytes(stand_in.log().frames[0].body) == bytes(frame.body)
    transport.release(connection)


class StingySocket(socket.socket):
    """Takes as many bytes at a time as it is told."""

    portions: list[int]

    def sendmsg(self, buffers: Iterable[Buffer], *_: object) -> int:  # type: ignore[override]
        return self.send(b"".join(buffers)[: self.portions.pop(0)])


def test_a_packet_that_the_kernel_takes_in_two_parts_arrives_as_it_is() -> None:
    request = proto.Request(id=9, produce=proto.Produce(topic="t"))
    # So large that it is sent from two buffers.
    frame = encode_batch([b"a" * JOINED_BYTES_MAX, b"b"])
    first, second = buffers = packet(request.SerializeToString(), (frame,))
    whole = b"".join(buffers)
    ours, theirs = socket.socketpair()
    with StingySocket(fileno=ours.detach()) as sock, theirs:
        connection = BlockingConnection("here", sock)
        for taken in (1, len(first) - 1, len(first), len(first) + 1, len(whole) - 1):
            sock.portions = [taken, len(whole) - taken]
            connection._send([first, second], soon())
            assert theirs.recv(2 * len(whole), socket.MSG_WAITALL | socket.MSG_DONTWAIT) == whole


def test_a_quick_call_does_not_wait_behind_a_long_poll(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("fetch", HANG)
    thread = threading.Thread(target=lambda: next(client.read("t", follow=True), None), daemon=True)
    thread.start()
    stand_in.until("fetch")
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began < 8
    stand_in.drop_all()
    client.produce("t", b"the reader goes on")
    thread.join(10)
    assert not thread.is_alive()


def test_a_closed_client_says_so(stand_in: StandIn) -> None:
    client = quivermq.connect(stand_in.address)
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.ping()


def test_a_cancelled_request_leaves_the_connection_good(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    stand_in.script("ping", HANG)
    connection = run(transport.connection(stand_in.address, soon()))
    hanging = run(connection.post(ping(), (), soon()))
    late = run(connection.post(ping(), (), soon()))
    connection.cancel(hanging)
    connection.cancel(late)
    stand_in.until("cancel", 2)
    # The answer that came all the same is dropped.
    assert asked(connection, ping()) == "done"
    transport.release(connection)
    assert run(transport.connection(stand_in.address, soon())) is connection
    transport.release(connection)


def test_the_first_of_several_answers_ends_the_wait(
    stand_in: StandIn, transport: BlockingTransport
) -> None:
    stand_in.script("ping", HANG)
    one = run(transport.connection(stand_in.address, soon()))
    other = run(transport.connection(stand_in.address, soon()))
    asked_both = [
        (one, run(one.post(ping(), (), soon()))),
        (other, run(other.post(ping(), (), soon()))),
    ]
    stand_in.until("ping", 2)
    run(transport.first_answered(asked_both, soon()))
    answered = [connection.is_answered(number) for connection, number in asked_both]
    assert answered.count(True) == 1
    left = [pair for pair, done in zip(asked_both, answered, strict=True) if not done]
    before = time.monotonic()
    run(transport.first_answered(left, soon(0.05)))
    assert time.monotonic() - before >= 0.05
    stand_in.drop_all()
    run(transport.first_answered(left, soon()))
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        run(left[0][0].take(left[0][1], soon()))
    for connection in (one, other):
        transport.release(connection)
