"""`quiver topic`, `produce` and `consume` against a cluster of processes."""

import json
import subprocess
from uuid import uuid4

import pytest

from tests.cli.commands import COMMAND, environment, error_line, quiver, quiver_json


@pytest.fixture
def topic(servers: str) -> str:
    name = f"orders-{uuid4().hex[:8]}"
    done = quiver("topic", "create", name, "--partitions", "3", "--servers", servers)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"topic {name}: 3 partitions with 3 replicas each, empty, kept forever\n"
    )
    return name


def test_a_topic_is_created_listed_described_altered_and_deleted(servers: str, topic: str) -> None:
    again = quiver("topic", "create", topic, "--partitions", "3", "--servers", servers)
    assert again.returncode == 0, "the same again is no error"
    other = quiver("topic", "create", topic, "--partitions", "4", "--servers", servers)
    assert topic in error_line(other, 1)

    assert topic in quiver("topic", "list", "--servers", servers).stdout
    altered = quiver_json(
        "topic", "alter", topic, "--partitions", "4", "--max-age", "7d", "--max-bytes", "1GB",
        "--servers", servers,
    )  # fmt: skip
    assert len(altered["partitions"]) == 4
    lifted = quiver_json("topic", "alter", topic, "--max-bytes", "none", "--servers", servers)
    assert lifted["retention"]["max_age"] == 604_800
    assert lifted["retention"]["max_bytes"] is None
    described = quiver("topic", "describe", topic, "--servers", servers)
    assert "kept for 7d" in described.stdout
    assert "1, 2, 3" in described.stdout

    unasked = quiver("topic", "delete", topic, "--servers", servers)
    assert (unasked.returncode, "give --yes" in unasked.stderr) == (2, True)
    kept = quiver("topic", "delete", topic, "--servers", servers, stdin="n\n")
    assert kept.returncode == 1
    assert topic in quiver("topic", "list", "--servers", servers).stdout
    gone = quiver("topic", "delete", topic, "--yes", "--servers", servers)
    assert gone.stdout == f"topic {topic} is deleted\n"
    assert topic in error_line(quiver("topic", "describe", topic, "--servers", servers), 1)


def test_internal_topics_are_listed_on_request(servers: str, topic: str) -> None:
    name = f"_spark.{topic}"
    made = quiver("topic", "create", name, "--servers", servers)
    assert made.returncode == 0, made.stderr
    listed = quiver("topic", "list", "--servers", servers).stdout
    assert topic in listed
    assert "_spark" not in listed
    shown = quiver_json("topic", "list", "--all", "--servers", servers)
    assert {topic, name} <= {each["name"] for each in shown}
    assert quiver("topic", "delete", name, "--yes", "--servers", servers).returncode == 0
    reserved = quiver("topic", "create", "_mine", "--servers", servers)
    assert "reserved" in error_line(reserved, 1)


def test_produced_messages_are_consumed(servers: str, topic: str) -> None:
    sent = quiver("produce", topic, "a", "b", "--partition", "1", "--servers", servers)
    assert sent.stdout == f"{topic} partition 1: offsets 0 to 1\n"
    assert "2 messages stored" in sent.stderr
    got = quiver("consume", topic, "--servers", servers)
    assert got.stdout == "a\nb\n"
    later = quiver("consume", topic, "--partition", "1", "--from", "1", "--servers", servers)
    assert later.stdout == "b\n"
    one = quiver("consume", topic, "--max", "1", "--from", "1h", "--servers", servers)
    assert one.stdout == "a\n"
    none = quiver("consume", topic, "--from", "latest", "--servers", servers)
    assert (none.returncode, none.stdout) == (0, "")


def test_lines_of_standard_input_are_messages_with_their_keys(servers: str, topic: str) -> None:
    lines = "".join(f"key-{number % 7}|value {number}\n" for number in range(5_000))
    sent = quiver_json("produce", topic, "--key-separator", "|", "--servers", servers, stdin=lines)
    assert sent["messages"] == 5_000
    got = quiver("consume", topic, "--json", "--servers", servers)
    found = [json.loads(line) for line in got.stdout.splitlines()]
    assert len(found) == 5_000
    for key in {message["key"] for message in found}:
        numbers = [int(each["value"].split()[1]) for each in found if each["key"] == key]
        assert numbers == sorted(numbers), "messages of one key keep their order"
        assert len({each["partition"] for each in found if each["key"] == key}) == 1


def test_content_types_times_and_times_to_live_are_options(servers: str, topic: str) -> None:
    place = ("--partition", "0", "--servers", servers)
    sent = quiver(
        "produce", topic, "[1]", "--content-type", "application/json",
        "--timestamp", "2024-02-03T04:05:06.789+00:00", "--ttl", "1h", *place,
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    assert quiver("produce", topic, "brief", "--ttl", "1ms", "--timestamp", "5", *place).stdout
    (line,) = quiver("consume", topic, "--json", "--servers", servers).stdout.splitlines()
    found = json.loads(line)
    assert (found["value"], found["content_type"]) == ("[1]", "application/json")
    assert found["timestamp"] == 1_706_933_106_789
    wrong = quiver("produce", topic, "v", "--timestamp", "soon", *place)
    assert "--timestamp" in error_line(wrong, 2)
    altered = quiver("topic", "alter", topic, "--drop-expired", "--servers", servers)
    assert altered.returncode == 0, altered.stderr
    described = quiver("topic", "describe", topic, "--servers", servers).stdout
    assert "messages whose ttl is over are dropped" in described


def test_headers_priority_and_raw_bytes_are_kept(servers: str, topic: str) -> None:
    quiver(
        "produce", topic, "--header", "a=1", "--header", "b=x=y", "--priority", "3",
        "--partition", "0", "--key", "k", "--servers", servers, stdin=b"\xff\x00\n",
    )  # fmt: skip
    (line,) = quiver("consume", topic, "--json", "--servers", servers).stdout.splitlines()
    found = json.loads(line)
    assert (found["encoding"], found["value"], found["priority"]) == ("base64", "/wA=", 3)
    assert found["headers"] == {"a": "MQ==", "b": "eD15"}
    raw = subprocess.run(
        [*COMMAND, "consume", topic, "--servers", servers],
        capture_output=True,
        check=True,
        env=environment(),
    )
    assert raw.stdout == b"\xff\x00\n"


def test_single_mode_continues_at_the_groups_commit(servers: str, topic: str) -> None:
    single = ["consume", topic, "--mode", "single", "--group", "g", "--servers", servers]
    quiver("produce", topic, "a", "b", "c", "--partition", "2", "--servers", servers)
    assert quiver(*single, "--max", "2").stdout == "a\nb\n"
    assert quiver(*single).stdout == "c\n"
    assert quiver(*single).stdout == ""
    assert quiver(*single, "--from", "earliest").stdout == "a\nb\nc\n"


def test_following_shows_messages_as_they_come_until_enough(servers: str, topic: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--follow", "--max", "3", "--servers", servers],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as following:
        assert following.stdout is not None
        for number in range(3):
            quiver("produce", topic, f"m{number}", "--partition", str(number), "--servers", servers)
            assert following.stdout.readline() == f"m{number}\n"
        assert following.wait(20) == 0


def test_a_reader_that_is_interrupted_ends_quietly(servers: str, topic: str) -> None:
    quiver("produce", topic, "a", "--servers", servers)
    with subprocess.Popen(
        [
            *COMMAND,
            "consume",
            topic,
            "--follow",
            "--mode",
            "single",
            "--group",
            "g",
            "--servers",
            servers,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == "a\n"
        following.send_signal(2)
        assert following.wait(20) == 130
        assert following.stderr.read() == f"1 message of {topic}\n"
    again = quiver("consume", topic, "--mode", "single", "--group", "g", "--servers", servers)
    assert again.stdout == ""


def test_a_pipe_that_closes_early_ends_the_reader_quietly(servers: str, topic: str) -> None:
    lines = "x" * 100 + "\n"
    quiver("produce", topic, "--servers", servers, stdin=lines * 5_000)
    command = " ".join([*COMMAND, "consume", topic, "--servers", servers])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} | head -n 1"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.stdout == lines
    assert done.stderr == ""


def test_an_unknown_topic_is_one_error_line(servers: str, topic: str) -> None:
    missing = error_line(quiver("consume", "nowhere", "--servers", servers), 1)
    assert "nowhere" in missing
    assert "nowhere" in error_line(quiver("produce", "nowhere", "v", "--servers", servers), 1)
    wrong = quiver("consume", topic, "--partition", "9", "--servers", servers)
    assert "has partitions 0 to 2" in error_line(wrong, 2)
    beyond = quiver("consume", topic, "--partition", "0", "--from", "99", "--servers", servers)
    assert "99" in error_line(beyond, 1)
    spread = quiver("consume", topic, "--from", "1", "--servers", servers)
    assert "name it by --partition" in error_line(spread, 2)
