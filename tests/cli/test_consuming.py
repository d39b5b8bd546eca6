"""`quiver consume` for groups, against a cluster of processes."""

import json
import os
import subprocess
import threading
from uuid import uuid4

import pytest

import quivermq
from tests.cli.commands import COMMAND, Done, environment, error_line, quiver, quiver_json


@pytest.fixture
def topic(servers: str) -> str:
    name = f"jobs-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name, partitions=2, max_deliveries=2)
        client.produce_many(name, [b"a", b"b", b"c"], partition=0)
        client.produce_many(name, [b"d"], partition=1)
    return name


def consume(topic: str, servers: str, *options: str) -> Done:
    done = quiver("consume", topic, "--group", "g", "--servers", servers, *options)
    assert done.returncode == 0, done.stderr
    return done


def start_consume(topic: str, servers: str, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "consume", topic, "--group", "g", "--servers", servers, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def lines(done: Done) -> list[str]:
    return sorted(done.stdout.split())


def first_deliveries(topic: str, servers: str) -> list[str]:
    """What waits for the group, none of which may have failed before."""
    found = [json.loads(line) for line in consume(topic, servers, "--json").stdout.splitlines()]
    assert {each["delivery_count"] for each in found} == {1}
    return sorted(each["value"] for each in found)


def test_a_shared_group_gets_each_message_once(servers: str, topic: str) -> None:
    first = consume(topic, servers, "--max", "2")
    assert len(first.stdout.split()) == 2
    assert first.stderr == f"2 messages of {topic}, acknowledged\n"
    rest = consume(topic, servers)
    assert sorted([*lines(first), *lines(rest)]) == ["a", "b", "c", "d"]
    assert consume(topic, servers).stderr == "nothing is waiting; --follow waits for messages\n"
    other = quiver("consume", topic, "--group", "other", "--servers", servers)
    assert lines(other) == ["a", "b", "c", "d"]


def test_a_new_group_can_start_at_latest(servers: str, topic: str) -> None:
    assert consume(topic, servers, "--from", "latest").stdout == ""
    quiver("produce", topic, "e", "--servers", servers)
    assert consume(topic, servers).stdout == "e\n"


def test_released_messages_come_again_and_do_not_count_as_failed(servers: str, topic: str) -> None:
    left = consume(topic, servers, "--then", "leave", "--max", "2")
    assert left.stderr == f"2 messages of {topic}, released\n"
    assert first_deliveries(topic, servers) == ["a", "b", "c", "d"]


def test_failed_messages_are_redelivered_then_become_dead_letters(servers: str, topic: str) -> None:
    failed = consume(topic, servers, "--then", "nack", "--details")
    # The first failure has no backoff: all that waits is shown twice before nothing is waiting.
    assert len(failed.stdout.splitlines()) == 8
    assert failed.stdout.count("delivery=2") == 4
    assert "returned as failed" in failed.stderr
    group = quiver_json("group", "describe", topic, "g", "--servers", servers)
    assert (group["lag"], group["dead"]) == (0, 4)


def test_rejected_messages_carry_their_reason(servers: str, topic: str) -> None:
    consume(topic, servers, "--then", "reject", "--reason", "no stock")
    with quivermq.connect(servers) as client:
        letters = _wait_for_letters(client, topic, 4)
    assert {letter.reason for letter in letters} == {"no stock"}


def _wait_for_letters(client: quivermq.Client, topic: str, many: int) -> list[quivermq.DeadLetter]:
    waiting = threading.Event()
    for _ in range(500):
        letters = client.dead_letters(topic)
        if len(letters) == many:
            return letters
        waiting.wait(0.02)
    raise AssertionError(f"{len(letters)} dead letters instead of {many}")


def test_ack_auto_acknowledges_before_printing(servers: str, topic: str) -> None:
    assert lines(consume(topic, servers, "--ack", "auto")) == ["a", "b", "c", "d"]
    group = quiver_json("group", "describe", topic, "g", "--servers", servers)
    assert (group["lag"], group["in_flight"], group["done"]) == (0, 0, 4)


def test_a_rate_limit_is_waited_for(servers: str) -> None:
    name = f"slow-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name, rate_limit=quivermq.RateLimit(per_second=10, burst=1))
        client.produce_many(name, [b"1", b"2", b"3"])
    assert consume(name, servers).stdout == "1\n2\n3\n"


def test_following_a_group_shows_messages_as_they_come(servers: str, topic: str) -> None:
    with start_consume(topic, servers, "--follow", "--max", "6") as following:
        assert following.stdout is not None
        shown = [following.stdout.readline() for _ in range(4)]
        assert sorted(shown) == ["a\n", "b\n", "c\n", "d\n"]
        for value in ("e", "f"):
            quiver("produce", topic, value, "--servers", servers)
            assert following.stdout.readline() == f"{value}\n"
        assert following.wait(20) == 0


def test_an_interrupted_consumer_releases_its_messages_at_once(servers: str, topic: str) -> None:
    options = ["--follow", "--then", "leave", "--visibility", "1h"]
    with start_consume(topic, servers, *options) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        for _ in range(4):
            following.stdout.readline()
        following.send_signal(2)
        assert following.wait(20) == 130
        assert following.stderr.read() == f"4 messages of {topic}, released\n"
    assert first_deliveries(topic, servers) == ["a", "b", "c", "d"]


def test_messages_lost_to_a_closed_pipe_are_not_acknowledged(servers: str, topic: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "consume", topic, "--group", "g", "--visibility", "1h", "--servers", servers],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        # Lines wait in the process until they are flushed, as for most people.
        env={**environment(), "PYTHONUNBUFFERED": ""},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
    assert first_deliveries(topic, servers) == ["a", "b", "c", "d"]


def test_a_lost_lease_is_reported(servers: str) -> None:
    name = f"large-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name)
        # More than a pipe holds: the consumer is stuck in printing until it is read.
        client.produce(name, b"x" * 1_000_000)
        with start_consume(name, servers, "--visibility", "300ms", "--max", "1") as slow:
            assert slow.stdout is not None
            assert slow.stderr is not None
            assert slow.stdout.read(1) == "x"
            (again,) = client.poll(name, group="g", wait=20)
            assert again.delivery_count == 2
            slow.stdout.read()
            assert slow.wait(20) == 0
            assert "--visibility gives more time" in slow.stderr.read()
        again.ack()


def test_a_sticky_group_continues_at_its_commit_and_reports_its_partitions(
    servers: str, topic: str
) -> None:
    sticky = ["--mode", "sticky"]
    first = consume(topic, servers, *sticky)
    assert first.stdout.replace("d\n", "") == "a\nb\nc\n", "each partition in order"
    assert lines(first) == ["a", "b", "c", "d"]
    assert first.stderr == f"partitions assigned: 0, 1\n4 messages of {topic}, committed\n"
    quiver("produce", topic, "e", "--servers", servers)
    assert consume(topic, servers, *sticky).stdout == "e\n"
    group = quiver_json("group", "describe", topic, "g", "--servers", servers)
    assert (group["lag"], group["members"]) == (0, [])


def test_options_without_effect_are_refused(servers: str, topic: str) -> None:
    def refusal(*options: str) -> str:
        return error_line(quiver("consume", topic, "--servers", servers, *options), 2)

    assert "needs a --group" in refusal("--mode", "shared")
    assert "needs a --group" in refusal("--mode", "sticky")
    assert "for shared groups" in refusal("--ack", "auto")
    assert "for shared groups" in refusal("--group", "g", "--mode", "sticky", "--then", "nack")
    assert "nothing to nack" in refusal("--group", "g", "--ack", "auto", "--then", "nack")
    assert "--then nack or reject" in refusal("--group", "g", "--reason", "x")
    assert "--mode single" in refusal("--group", "g", "--partition", "1")
    assert "quiver group seek" in refusal("--group", "g", "--from", "5")
    reserved = quiver("consume", topic, "--group", "_g", "--servers", servers)
    assert "begin with _" in error_line(reserved, 1)


@pytest.fixture
def pair(servers: str) -> list[str]:
    """Two topics with two messages each, and a prefix of their own."""
    names = [f"pair-{uuid4().hex[:8]}-{letter}" for letter in "ab"]
    names[1] = f"{names[0][:-1]}b"
    with quivermq.connect(servers) as client:
        for name in names:
            client.create_topic(name)
            client.produce_many(name, [f"{name[-1]}{number}".encode() for number in (0, 1)])
    return names


@pytest.mark.parametrize("mode", ["shared", "sticky", "single"])
def test_several_topics_are_consumed_together(servers: str, pair: list[str], mode: str) -> None:
    by_name = quiver("consume", *pair, "--group", "g", "--mode", mode, "--servers", servers)
    assert by_name.returncode == 0, by_name.stderr
    assert lines(by_name) == ["a0", "a1", "b0", "b1"]
    assert f"4 messages of {pair[0]}, {pair[1]}" in by_name.stderr
    pattern = ("--pattern", f"{pair[0][:-1]}.", "--details")
    again = quiver("consume", *pattern, "--group", "h", "--mode", mode, "--servers", servers)
    assert again.returncode == 0, again.stderr
    assert len(again.stdout.splitlines()) == 4
    assert f"{pair[1]}/0/1 " in again.stdout


def test_topics_and_patterns_that_make_no_sense_are_wrong_usage(servers: str) -> None:
    for arguments in (["a", "b", "--pattern"], ["(", "--pattern"]):
        done = quiver("consume", *arguments, "--group", "g", "--servers", servers)
        assert "regular expression" in error_line(done, 2)


@pytest.mark.parametrize("mode", ["shared", "sticky", "single"])
def test_a_consumer_that_is_told_to_end_settles_what_it_printed(
    servers: str, topic: str, mode: str
) -> None:
    running = start_consume(topic, servers, "--follow", "--mode", mode)
    assert running.stdout is not None
    printed = [running.stdout.readline().strip() for _ in range(4)]
    running.terminate()
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert sorted(printed) == ["a", "b", "c", "d"]
    assert f"4 messages of {topic}" in said
    with quivermq.connect(servers) as client:
        info = client.group(topic, "g")
        assert (info.lag, info.in_flight) == (0, 0)
