"""Busy polling: it ends where it does not pay, and where others want the core."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quivermq import busy_poll
from quivermq.busy_poll import LookPolicy, LoopPoll, usable_cores
from quivermq.client.blocking_transport import BlockingConnection
from quivermq.wire import id_field, plain_packet, proto, stored_offset
from tests.client.test_damaged_answers import WELCOME
from tests.transports.stage import on_loop
from tests.wire.samples import packed

PATIENCE_S = 20.0
LONG_S = 60.0
needs_two_cores = pytest.mark.skipif(usable_cores() < 2, reason="one core is not looked on")


def tried(policy: LookPolicy, times: int) -> int:
    return sum(policy.may_look() for _ in range(times))


def test_looks_in_vain_become_seldom_and_one_that_pays_brings_all_back() -> None:
    policy = LookPolicy()
    for most in (2, 4, 8, 16, 32, 32):
        assert policy.may_look()
        policy.in_vain()
        assert tried(policy, most - 1) == 0
    assert policy.may_look()
    policy.paid()
    assert tried(policy, 10) == 10


@contextmanager
def crowded(core: int) -> Iterator[None]:
    """Another program takes all of this core that it can get."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as hog:
        assert hog.stdout is not None
        hog.stdout.readline()
        try:
            yield
        finally:
            hog.kill()


def rests_within(policy: LookPolicy, seconds: float) -> bool:
    """Work for so long, with a look in between that always pays and another program that is let
    run; whether the policy rests."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not policy.may_look():
            return True
        policy.paid()
        # Short of a sleep: whoever sleeps is not taken off the core against its will.
        until = time.perf_counter() + 0.0001
        while time.perf_counter() < until:
            pass
    return False


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_a_thread_that_has_to_make_way_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two programs that never sleep are switched every few milliseconds only.
    monkeypatch.setattr(busy_poll, "_PREEMPTIONS_A_SECOND", 20)
    found: list[bool] = []

    def work() -> None:
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(threading.get_native_id(), {core})
        with crowded(core):
            found.append(rests_within(LookPolicy(), PATIENCE_S))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


def test_a_thread_that_is_never_preempted_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "preemptions", lambda: 7)
    assert not rests_within(LookPolicy(), 0.2)


@pytest.mark.parametrize(
    ("quota", "cores"), [("50000 100000\n", 0.5), ("max 100000\n", None), ("nonsense", None)]
)
def test_a_container_has_the_cores_of_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: float | None
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    monkeypatch.setattr(busy_poll, "_CPU_QUOTA", tmp_path / "none")
    whole = usable_cores()
    monkeypatch.setattr(busy_poll, "_CPU_QUOTA", file)
    assert usable_cores() == (whole if cores is None else cores)


async def turns_in(seconds: float, count: "Turns") -> int:
    """How often the event loop looked at its sockets meanwhile."""
    before = count.turns
    await asyncio.sleep(seconds)
    return count.turns - before


class Turns:
    """Counts the turns of a loop by the calls of `LoopPoll`, one a turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = 0
        look = LoopPoll._look

        def counted(poll: LoopPoll) -> None:
            self.turns += 1
            look(poll)

        monkeypatch.setattr(LoopPoll, "_look", counted)


@needs_two_cores
@on_loop
async def test_a_loop_stays_awake_until_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    poll = LoopPoll(asyncio.get_running_loop(), LONG_S)
    poll.expect()
    assert await turns_in(0.05, turns) > 100
    poll.came()
    assert await turns_in(0.05, turns) <= 1
    assert poll._policy._in_vain == 0
    # Twice expected, once looked for.
    poll.expect()
    poll.expect()
    await asyncio.sleep(0)
    before = turns.turns
    await asyncio.sleep(0)
    assert turns.turns - before <= 1
    poll.came()


@needs_two_cores
@on_loop
async def test_a_loop_sleeps_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    poll = LoopPoll(asyncio.get_running_loop(), 0.001)
    poll.expect()
    await asyncio.sleep(0.05)
    assert poll._policy._in_vain == 1
    assert await turns_in(0.05, turns) == 0
    # The next is left out.
    poll.expect()
    assert await turns_in(0.02, turns) == 0


@on_loop
async def test_without_a_window_or_a_second_core_a_loop_never_stays_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, loop = Turns(monkeypatch), asyncio.get_running_loop()
    LoopPoll(loop, 0.0).expect()
    assert await turns_in(0.02, turns) == 0
    (tmp_path / "cpu.max").write_text("150000 100000")
    monkeypatch.setattr(busy_poll, "_CPU_QUOTA", tmp_path / "cpu.max")
    LoopPoll(loop, LONG_S).expect()
    assert await turns_in(0.02, turns) == 0


FIELDS = proto.Request(ping=proto.Ping()).SerializeToString()


def answer_of(number: int) -> bytes:
    response = proto.Response(id=number)
    response.produced.batches.add(first_offset=41, count=1, timestamp_ms=1_700_000_000_000)
    return packed(response.SerializeToString())


@contextmanager
def asking(*, busy_poll: bool = True) -> Iterator[tuple[BlockingConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = BlockingConnection("here", ours, busy_poll=busy_poll)
        theirs.sendall(packed(WELCOME.SerializeToString()))
        connection.greet(None, "test", time.monotonic() + 9)
        theirs.recv(1 << 10)
        yield connection, theirs


def first_number() -> int:
    """The id that the first request of a connection has."""
    with asking() as (connection, theirs):
        theirs.close()
        with pytest.raises(Exception, match="here"):
            connection.ask_plain(FIELDS, b"", time.monotonic() + 1, stored_offset)
        return connection._last_id


def test_an_answer_that_comes_at_once_is_found_by_looking() -> None:
    number = first_number()
    with asking() as (connection, theirs):
        theirs.sendall(answer_of(number))
        assert connection.ask_plain(FIELDS, b"", time.monotonic() + 9, stored_offset) == 41
        assert connection._plain_asks is not None
        assert (connection._plain_asks._rounds, connection._plain_asks._in_vain) == (1, 0)
        assert theirs.recv(1 << 10) == plain_packet(id_field(number), FIELDS)


def test_an_answer_that_takes_longer_is_waited_for_asleep() -> None:
    number = first_number()
    with asking() as (connection, theirs):
        timer = threading.Timer(0.1, theirs.sendall, [answer_of(number)])
        timer.start()
        before = time.thread_time()
        assert connection.ask_plain(FIELDS, b"", time.monotonic() + 9, stored_offset) == 41
        assert time.thread_time() - before < 0.05
        assert connection._plain_asks is not None
        assert connection._plain_asks._in_vain == 1
        timer.join()


def test_one_thread_of_a_process_looks_at_a_time_and_a_client_may_do_without() -> None:
    number = first_number()
    with asking() as (connection, theirs), busy_poll_taken():
        theirs.sendall(answer_of(number))
        assert connection.ask_plain(FIELDS, b"", time.monotonic() + 9, stored_offset) == 41
    with asking(busy_poll=False) as (connection, theirs):
        assert connection._plain_asks is None
        theirs.sendall(answer_of(number))
        assert connection.ask_plain(FIELDS, b"", time.monotonic() + 9, stored_offset) == 41


@contextmanager
def busy_poll_taken() -> Iterator[None]:
    """Another thread looks."""
    from quivermq.client import blocking_transport  # noqa: PLC0415

    with blocking_transport._look_place:
        yield


def test_a_connection_that_ends_while_its_answer_is_looked_for_is_lost() -> None:
    with asking() as (connection, theirs):
        theirs.close()
        with pytest.raises(Exception, match="here"):
            connection.ask_plain(FIELDS, b"", time.monotonic() + 9, stored_offset)
        assert not connection.is_open
