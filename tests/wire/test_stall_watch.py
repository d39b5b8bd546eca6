"""A packet that has stopped arriving is told from one that arrives slowly."""

from quivermq.wire import Receiver, StallWatch, packet
from quivermq.wire.receiver import STALLED_BYTES_PER_S, STALLED_S

BEAT = b"".join(map(bytes, packet(b"a heartbeat")))
LONGER = bytearray(b"".join(map(bytes, packet(b"x" * 100))))
LONGER[1] ^= 1  # 64 KiB more than there are,
LONGER[5] ^= 1  # and an envelope whose checksum has not arrived
LONG = b"".join(map(bytes, packet(bytes(900_000))))


def feed(receiver: Receiver, content: bytes) -> None:
    left = memoryview(content)
    while left:
        buffer = receiver.get_buffer()
        size = min(len(buffer), len(left))
        buffer[:size] = left[:size]
        receiver.received(size)
        left = left[size:]


def watched() -> tuple[Receiver, StallWatch]:
    receiver = Receiver(1 << 20, 1 << 20)
    feed(receiver, BEAT)
    return receiver, StallWatch(receiver)


def test_a_connection_without_packets_is_not_stalled() -> None:
    _, watch = watched()
    assert not any(watch.is_stalled(float(now)) for now in range(100))


def test_packets_that_arrive_whole_are_not_stalled() -> None:
    receiver, watch = watched()
    for now in range(100):
        feed(receiver, BEAT + BEAT[:7])
        assert not watch.is_stalled(float(now))
        feed(receiver, BEAT[7:])


def test_a_damaged_length_that_swallows_heartbeats_is_stalled() -> None:
    receiver, watch = watched()
    feed(receiver, bytes(LONGER))
    stalled = []
    for now in range(20):
        feed(receiver, BEAT)
        if watch.is_stalled(float(now)):
            stalled.append(now)
    assert receiver.packets == 1
    assert stalled
    assert stalled[0] == STALLED_S + 1


def test_a_large_packet_on_a_slow_link_is_not_stalled() -> None:
    receiver, watch = watched()
    at, now, step = 0, 0.0, STALLED_BYTES_PER_S + 1
    while at < len(LONG):
        feed(receiver, LONG[at : at + step])
        at += step
        now += 1.0
        assert not watch.is_stalled(now)
    assert receiver.packets == 2
    assert now > STALLED_S


def test_what_arrived_quickly_at_first_is_stalled_all_the_same() -> None:
    receiver, watch = watched()
    now = 0.0
    for at in range(0, len(LONG) // 2, 8 * STALLED_BYTES_PER_S):
        feed(receiver, LONG[at : at + 8 * STALLED_BYTES_PER_S])
        assert not watch.is_stalled(now)
        now += 1.0
    began = now
    while not watch.is_stalled(now):
        feed(receiver, BEAT)
        now += 1.0
    assert now - began <= 2 * STALLED_S + 2


def test_what_was_not_read_is_not_waited_for() -> None:
    receiver, watch = watched()
    feed(receiver, BEAT[:9])
    assert not watch.is_stalled(0.0)
    watch.forget(100.0)
    assert not watch.is_stalled(101.0)
    assert watch.is_stalled(100.0 + STALLED_S + 1)
