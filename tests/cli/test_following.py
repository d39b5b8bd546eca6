"""Commands that run for long: brokers that go away and come back, Ctrl-C, input that is wrong."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quivermq
from tests.cli.commands import COMMAND, environment, quiver
from tests.client.brokers import BrokerThread


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    running = BrokerThread(tmp_path, fsync="always")
    with quivermq.connect(running.address) as client:
        client.create_topic("orders")
    yield running
    running.stop()


@contextmanager
def start(broker: BrokerThread, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*COMMAND, *arguments, "--servers", broker.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("mode", [["--mode", "single"], ["--group", "g"]], ids=["single", "shared"])
def test_a_follower_waits_for_brokers_to_come_back_and_sums_up_at_the_end(
    broker: BrokerThread, mode: list[str]
) -> None:
    quiver("produce", "orders", "a", "--servers", broker.address)
    with start(broker, "consume", "orders", "--follow", "--timeout", "1s", *mode) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == "a\n"
        broker.stop()
        try:
            told = [following.stderr.readline()]
            while not told[-1].startswith("waiting for brokers: "):
                assert told[-1], told
                told.append(following.stderr.readline())
        finally:
            broker.start()
        quiver("produce", "orders", "b", "--servers", broker.address)
        assert following.stdout.readline() == "b\n"
        following.send_signal(signal.SIGINT)
        # A message that was not acknowledged when the broker went may have come twice.
        rest = following.stderr.read().splitlines()
        assert following.wait(20) == 130, "\n".join(rest)
        assert "messages of orders" in rest[-1]


def test_without_follow_a_failure_ends_the_command(broker: BrokerThread) -> None:
    broker.stop()
    try:
        done = quiver("consume", "orders", "--timeout", "300ms", "--servers", broker.address)
    finally:
        broker.start()
    assert done.returncode == 1
    assert "waiting" not in done.stderr


def test_an_interrupted_producer_says_what_is_stored(broker: BrokerThread) -> None:
    with (
        quivermq.connect(broker.address) as client,
        start(broker, "produce", "orders") as producing,
    ):
        assert producing.stdin is not None
        producing.stdin.write("a\nb\nc\n")
        producing.stdin.flush()
        # It waits for more input.
        stored = client.read("orders", follow=True)
        assert [next(stored).value for _ in range(3)] == [b"a", b"b", b"c"]
        producing.send_signal(signal.SIGINT)
        out, told = producing.communicate(timeout=30)
    assert producing.returncode == 130
    assert out == "orders partition 0: offsets 0 to 2\n"
    assert told.startswith("3 messages stored")


def test_wrong_input_in_the_middle_does_not_hide_what_is_stored(broker: BrokerThread) -> None:
    command = ["produce", "orders", "--key-separator", "=", "--servers", broker.address]
    done = quiver(*command, stdin="k=a\nk=b\nnothing\n")
    assert done.returncode == 2
    assert done.stdout == "orders partition 0: offsets 0 to 1\n"
    assert "2 messages stored" in done.stderr
    assert "error: message 3 has no '='" in done.stderr
