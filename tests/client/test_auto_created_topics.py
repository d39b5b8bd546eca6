"""Topics that brokers create by themselves, when they are produced to or consumed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import quivermq
from quivermq.client import topic_choice
from tests.client.brokers import BrokerThread


@pytest.fixture
def client(tmp_path: Path) -> Iterator[quivermq.Client]:
    broker = BrokerThread(tmp_path, auto_create_topics=True)
    with quivermq.connect(broker.address) as client:
        yield client
    broker.stop()


def test_consuming_creates_a_topic_as_producing_does(client: quivermq.Client) -> None:
    client.produce("produced", b"x")
    assert client.poll("polled", group="g", wait=0) == []
    client.subscribe("subscribed", group="g").close()
    with client.consumer("joined", group="g") as consumer:
        client.produce("joined", b"first")
        assert next(iter(consumer)).value == b"first"
    made = {name for name in client.topic_names() if not name.startswith("_")}
    assert made == {"produced", "polled", "subscribed", "joined"}


def test_reading_and_describing_create_nothing(client: quivermq.Client) -> None:
    with pytest.raises(quivermq.TopicNotFound):
        list(client.read("read"))
    with pytest.raises(quivermq.TopicNotFound):
        client.topic("described")
    assert not [name for name in client.topic_names() if not name.startswith("_")]


def test_a_user_who_may_only_consume_creates_nothing(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path, auto_create_topics=True, users=True)
    try:
        with quivermq.connect(broker.address) as anybody:
            root = anybody.users.add("root")
            anybody.users.grant("root", "admin")
        with quivermq.connect(broker.address, token=root) as admin:
            reader = admin.users.add("reader")
            admin.users.grant("reader", "consume")
        with quivermq.connect(broker.address, token=reader) as client:
            for consume in (client.poll, client.subscribe, client.consumer):
                with pytest.raises(quivermq.TopicNotFound):
                    consume("orders", group="g")
    finally:
        broker.stop()


def test_a_topic_that_a_pattern_matched_is_not_made_again(
    client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That it is gone is not known from a list of topics.
    monkeypatch.setattr(topic_choice, "PATTERN_SECONDS", 3600.0)
    names = ["several-a", "several-b"]
    for name in names:
        client.produce(name, b"x")
    seen: list[str] = []
    while len(seen) < 2:
        seen += [message.topic for message in client.poll("several-.*", "g", pattern=True)]
    client.delete_topic(names[0])
    for _ in range(4):
        assert client.poll("several-.*", "g", pattern=True, wait=0.1) == []
    assert [name for name in client.topic_names() if not name.startswith("_")] == names[1:]
