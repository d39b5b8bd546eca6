"""`quiver group`, `dlq` and `delayed` against a cluster of processes."""

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

import quivermq
from tests.cli.commands import error_line, quiver, quiver_json


@pytest.fixture
def topic(servers: str) -> str:
    name = f"orders-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name, partitions=2)
        client.produce_many(name, [b"a", b"b", b"c"], partition=0)
        client.produce_many(name, [b"d"], keys=[b"k"], partition=1)
    return name


@pytest.fixture
def client(servers: str) -> Iterator[quivermq.Client]:
    with quivermq.connect(servers) as connected:
        yield connected


def bury(client: quivermq.Client, topic: str) -> None:
    """Reject everything, and wait until all of it is among the dead letters."""
    while messages := client.poll(topic, group="g", wait=0):
        client.reject(messages, "no [bold]stock[/]")
    deadline = time.monotonic() + 20
    while len(client.dead_letters(topic)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def table_rows(text: str) -> list[list[str]]:
    """The cells of a printed table, without its head."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    rule = next(number for number, row in enumerate(rows) if set(row[0]) == {"─"})
    return rows[rule + 1 :]


def test_a_group_is_listed_and_described(servers: str, topic: str, client: quivermq.Client) -> None:
    with client:
        assert "no groups" in quiver("group", "list", topic, "--servers", servers).stderr
        for _ in range(2):  # one leader after the other
            client.ack(client.poll(topic, group="g", max_messages=1))
        held = client.poll(topic, group="g")
        listed = quiver("group", "list", topic, "--servers", servers).stdout
        (row,) = table_rows(listed)
        assert row[:3] == ["g", "shared", "1"]
        assert int(row[3]) + int(row[4]) == 2, "lag and in flight"
        assert row[6] == "2", "done"
        everywhere = quiver("group", "list", "--servers", servers, variables={"COLUMNS": "80"})
        assert topic in everywhere.stdout.splitlines()
        assert max(map(len, everywhere.stdout.splitlines())) <= 80

        described = quiver("group", "describe", topic, "g", "--servers", servers).stdout
        assert described.startswith(f"g of {topic}: shared, 1 member\n")
        members, leased = described.split("leased to")
        assert members.rstrip().endswith(f" {len(held)}"), "its member, and what it holds"
        assert "[" in members.rstrip().splitlines()[-1], "the member's program and process"
        assert sum(int(row[-4]) for row in table_rows(leased)) == len(held)

        found = quiver_json("group", "describe", topic, "g", "--servers", servers)
        assert found["in_flight"] == len(held)
        assert sum(each["count"] for each in found["leased"]) == len(held)
        assert all(0 <= each["held"] < 30 for each in found["leased"])
        assert [each["partition"] for each in found["partitions"]] == [0, 1]
        missing = quiver("group", "describe", topic, "nobody", "--servers", servers)
        assert "nobody" in error_line(missing, 1)


def test_an_archive_is_listed_as_a_group_and_can_be_deleted(
    servers: str, topic: str, client: quivermq.Client
) -> None:
    altered = quiver(
        "topic", "alter", topic, "--keep-until-archived", "--delete-acked", "--servers", servers
    )
    assert "kept until every group is done, and until archived" in altered.stdout
    described = quiver("topic", "describe", topic, "--servers", servers).stdout
    assert "nothing is dropped: no archive reads this topic" in described
    assert "nothing is dropped as done: the topic has no group" in described
    archive = f"_archive.{uuid4()}"
    client.commit(topic, archive, 0, 1)
    client.commit(topic, archive, 1, 1)
    client.ack(client.poll(topic, group="g", max_messages=1))
    described = quiver("topic", "describe", topic, "--servers", servers).stdout
    assert f"kept for {archive} (archive): 2 messages behind" in described
    assert "kept for g (shared): 3 messages behind" in described
    listed = quiver_json("group", "list", topic, "--servers", servers)
    assert [(each["name"], each["mode"]) for each in listed] == [
        (archive, "archive"),
        ("g", "shared"),
    ]
    gone = quiver("group", "delete", topic, archive, "--yes", "--servers", servers)
    assert gone.returncode == 0, gone.stderr


def test_members_of_a_sticky_group_are_named_with_their_partitions(
    servers: str, topic: str, client: quivermq.Client
) -> None:
    with client, client.consumer(topic, group="s", mode="sticky", name="scribe") as consumer:
        consumer.poll(wait=10)
        consumer.commit()
        described = quiver("group", "describe", topic, "s", "--servers", servers).stdout
    assert described.startswith(f"s of {topic}: sticky, 1 member, generation ")
    assert described.split()[-3:] == ["scribe", "0,", "1"]


def test_a_group_is_moved_and_deleted(servers: str, topic: str) -> None:
    consume = ["consume", topic, "--group", "g", "--servers", servers]
    assert len(quiver(*consume).stdout.split()) == 4
    seek = ["group", "seek", topic, "g", "--servers", servers, "--to"]
    back = quiver(*seek, "1", "--partition", "0")
    assert back.stdout == f"g continues at offset 1 of {topic} partition 0\n"
    assert quiver(*consume).stdout == "b\nc\n"
    assert quiver_json(*seek, "earliest")["offsets"] == {"0": 0, "1": 0}
    assert len(quiver(*consume).stdout.split()) == 4
    assert quiver_json(*seek, "1h")["offsets"] == {"0": 0, "1": 0}
    assert quiver_json(*seek, "latest")["offsets"] == {"0": 3, "1": 1}
    assert quiver(*consume).stdout == ""
    assert "--partition" in error_line(quiver(*seek, "1"), 2)
    assert "not a time" in error_line(quiver(*seek, "soon"), 2)
    misspelt = ["group", "seek", topic, "gg", "--servers", servers, "--to", "latest"]
    assert f"{topic} has no group 'gg', only: g." in error_line(quiver(*misspelt), 2)
    assert quiver_json(*misspelt, "--create")["offsets"] == {"0": 3, "1": 1}

    delete = ["group", "delete", topic, "g", "--servers", servers]
    kept = quiver(*delete, stdin="n\n")
    assert kept.returncode == 1
    assert "nothing was changed" in kept.stderr
    assert quiver(*delete, "--yes").stdout == f"group g of {topic} is deleted\n"
    assert error_line(quiver(*delete, "--yes"), 1)
    assert len(quiver(*consume).stdout.split()) == 4, "it begins anew"


def test_dead_letters_are_listed_shown_put_back_and_dropped(
    servers: str, topic: str, client: quivermq.Client
) -> None:
    with client:
        bury(client, topic)
    listed = quiver("dlq", "list", topic, "--servers", servers)
    assert "no [bold]stock[/]" in listed.stdout, "what users wrote colours nothing"
    assert sorted(row[0] for row in table_rows(listed.stdout)) == ["0/0", "0/1", "0/2", "1/0"]
    narrow = quiver("dlq", "list", topic, "--servers", servers, variables={"COLUMNS": "80"})
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    assert [row[0] for row in table_rows(narrow.stdout)] == ["0/0", "0/1", "0/2", "1/0"]
    assert all("no [bol" in line for line in narrow.stdout.splitlines() if "/" in line)
    few = quiver("dlq", "list", topic, "--max", "3", "--servers", servers)
    assert "there are more" in few.stderr
    assert len(quiver_json("dlq", "list", topic, "--group", "h", "--servers", servers)) == 0

    shown = quiver("dlq", "show", topic, "1/0", "--servers", servers).stdout
    assert f"{topic} partition 1 offset 0" in shown
    assert shown.endswith("\n\nd\n")
    told = quiver_json("dlq", "show", topic, "1/0", "--servers", servers)
    assert (told["key"], told["value"], told["group"]) == ("k", "d", "g")
    missing = quiver("dlq", "show", topic, "1/9", "--servers", servers)
    assert "no dead letter 1/9" in error_line(missing, 2)

    unclear = quiver("dlq", "redrive", topic, "--servers", servers)
    assert "--all" in error_line(unclear, 2)
    back = quiver("dlq", "redrive", topic, "--offset", "1/0", "--servers", servers)
    assert back.stdout == f"1 dead letter of {topic} given back to the group that failed\n"
    waited = quiver(
        "consume", topic, "--group", "g", "--follow", "--max", "1", "--servers", servers
    )
    assert waited.stdout == "d\n"

    kept = quiver("dlq", "purge", topic, "--all", "--servers", servers, stdin="n\n")
    assert kept.returncode == 1
    assert len(quiver_json("dlq", "list", topic, "--servers", servers)) == 3
    gone = quiver("dlq", "purge", topic, "--all", "--yes", "--servers", servers)
    assert gone.stdout == f"3 dead letters of {topic} dropped\n"
    assert quiver_json("dlq", "list", topic, "--servers", servers) == []
    none = quiver("dlq", "redrive", topic, "--all", "--to", "all", "--servers", servers)
    assert none.stdout == f"0 dead letters put back into {topic}, for every group\n"


def test_dead_letters_are_found_over_the_cluster_and_by_what_they_tell(
    servers: str, topic: str, client: quivermq.Client
) -> None:
    with client:
        bury(client, topic)

    def listed(*options: str) -> list[str]:
        found = quiver_json("dlq", "list", *options, "--max", "1000", "--servers", servers)
        return [letter["value"] for letter in found if letter["topic"] == topic]

    assert sorted(listed()) == ["a", "b", "c", "d"]
    everywhere = quiver("dlq", "list", "--max", "1000", "--servers", servers)
    assert f"{topic} 1/0" in everywhere.stdout
    assert listed("--reason", "stock", "--key", "k") == ["d"]
    assert listed(topic, "--since", "1h", "--group", "g") == listed(topic)
    assert listed("--older-than", "1h") == listed("--since", "2999-01-01") == []
    soon = quiver("dlq", "list", "--since", "soon", "--servers", servers)
    assert "is not a time" in error_line(soon, 2)
    redrive = ["dlq", "redrive", topic, "--key", "k", "--rate", "100", "--servers", servers]
    assert quiver_json(*redrive) == {"topic": topic, "to": "group", "redriven": 1, "stayed": 0}
    purge = ["dlq", "purge", topic, "--reason", "stock", "--yes", "--servers", servers]
    assert quiver_json(*purge) == {"topic": topic, "purged": 3}


def test_delayed_messages_are_listed_and_cancelled(servers: str, topic: str) -> None:
    assert "no delayed messages" in quiver("delayed", "list", topic, "--servers", servers).stderr
    for value in ("x", "y"):
        quiver("produce", topic, value, "--delay", "1h", "--partition", "1", "--servers", servers)
    listed = quiver("delayed", "list", topic, "--servers", servers)
    assert [row[:2] for row in table_rows(listed.stdout)] == [["1/1", "1"], ["1/2", "1"]]
    vague = quiver("delayed", "cancel", topic, "1", "--servers", servers)
    assert "write PARTITION/1" in error_line(vague, 2)
    wrong = quiver("delayed", "cancel", topic, "1/x", "--servers", servers)
    assert "PARTITION/OFFSET" in error_line(wrong, 2)
    cancel = ["delayed", "cancel", topic, "1/1", "--servers", servers]
    assert quiver(*cancel).stdout == f"1 message of {topic} will not be delivered\n"
    cancel = ["delayed", "cancel", topic, "1", "--partition", "1", "--servers", servers]
    assert quiver_json(*cancel)["cancelled"] == 0
    (left,) = quiver_json("delayed", "list", topic, "--servers", servers)
    assert left["offset"] == 2


def test_a_topics_delivery_is_set_altered_and_described(servers: str) -> None:
    name = f"letters-{uuid4().hex[:8]}"
    create = quiver(
        "topic", "create", name, "--rate-limit", "30/m", "--burst", "5", "--max-deliveries", "3",
        "--dead-letter", "morgue", "--retry-first", "2s", "--retry-longest", "5m",
        "--servers", servers,
    )  # fmt: skip
    assert create.returncode == 0, create.stderr
    described = quiver("topic", "describe", name, "--servers", servers).stdout
    assert "failed messages are redelivered after 2s, then after 1s doubling to 5m\n" in described
    assert "after 3 failures they go to morgue\n" in described
    assert "at most 0.5 messages a second are delivered, 5 at once after a pause\n" in described
    alter = ["topic", "alter", name, "--servers", servers]
    faster = quiver_json(*alter, "--rate-limit", "100/s")
    assert faster["rate_limit"] == {"per_second": 100.0, "burst": 5}
    lifted = quiver_json(*alter, "--rate-limit", "none", "--max-deliveries", "7")
    assert (lifted["rate_limit"], lifted["max_deliveries"]) == (None, 7)
    assert (lifted["dead_letter"], lifted["retry"]["first"]) == ("morgue", 2.0)
    assert "--rate-limit" in error_line(quiver(*alter, "--burst", "3"), 2)
    assert "say what to change" in error_line(quiver(*alter), 2)
    assert "is not a rate" in error_line(quiver(*alter, "--rate-limit", "fast"), 2)
