"""Clients of a partition that remembers few producers, and forgets the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import quivermq
from quivermq.errors import InvalidRequest, OutOfSequence
from quivermq.queue import producers
from tests.client.brokers import BrokerThread

TOPIC = "orders"
REMEMBERED = 4


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(producers, "BOUNDS", producers.Bounds(producers=REMEMBERED))
    broker = BrokerThread(tmp_path)
    with quivermq.connect(broker.address) as client:
        client.create_topic(TOPIC, partitions=1)
    yield broker.address
    broker.stop()


def stored(client: quivermq.Client) -> list[bytes]:
    return [message.value for message in client.read(TOPIC, 0)]


def test_clients_that_were_forgotten_go_on_and_store_everything_once(address: str) -> None:
    clients = [quivermq.connect(address) for _ in range(3 * REMEMBERED)]
    sent = []
    try:
        for turn in range(3):
            for number, client in enumerate(clients):
                sent.append(b"%d of %d" % (turn, number))
                client.produce(TOPIC, sent[-1], partition=0)
        assert stored(clients[0]) == sent
    finally:
        for client in clients:
            client.close()


def test_a_producer_with_its_own_identity_gets_an_error_with_advice(address: str) -> None:
    with quivermq.connect(address) as client:
        client.produce_many(TOPIC, [b"a", b"b"], partition=0, producer_id=77)
        for number in range(1, REMEMBERED + 1):
            client.produce_many(TOPIC, [b"x"], partition=0, producer_id=number)
        with pytest.raises(InvalidRequest, match="higher epoch"):
            client.produce_many(TOPIC, [b"c"], partition=0, producer_id=77, sequence=2)
        with pytest.raises(OutOfSequence) as caught:
            client.position(TOPIC, 0, producer_id=77)
        assert caught.value.may_be_forgotten
        client.produce_many(TOPIC, [b"c"], partition=0, producer_id=77, epoch=1)
        assert stored(client) == [b"a", b"b", *[b"x"] * REMEMBERED, b"c"]
