"""Forked processes: the child has connections and identities of its own, or says why not."""

import asyncio
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import quivermq
import quivermq.aio
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import StandIn

# Forking a process with threads is what is tested: later versions of Python warn of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, or the text of what it raises, in a forked child."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        with os.fdopen(writable, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        result = pickle.load(pipe)
    os.waitpid(child, 0)
    return result


def test_a_child_goes_on_with_connections_and_an_identity_of_its_own(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"parent")
    hellos = len(stand_in.hellos)
    assert in_child(lambda: client.produce("t", b"child").offset) == 1
    assert len(stand_in.hellos) > hellos
    assert client.produce("t", b"parent again").offset == 2
    producers = [frame.header.producer_id for frame in stand_in.log().frames]
    assert producers[0] == producers[2] != producers[1]


def test_a_reader_goes_on_in_both(stand_in: StandIn, client: quivermq.Client) -> None:
    for start in range(0, 100, 10):
        client.produce_many("t", [b"%d" % n for n in range(start, start + 10)])
    reader = client.read("t")
    assert next(reader).offset == 0
    assert in_child(lambda: [message.offset for message in reader]) == list(range(1, 100))
    assert [message.offset for message in reader] == list(range(1, 100))


def test_a_producer_says_that_it_stayed_with_the_parent(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer() as producer:
        producer.send("t", b"parent").result(5)
        assert "forked" in in_child(lambda: producer.send("t", b"child"))
        producer.send("t", b"parent")
    with client.producer(linger=60) as producer:
        producer.send("t", b"parent")
        producer.send("t", b"parent")
        # A batch is open where the child would put its message, and never send it.
        assert "forked" in in_child(lambda: producer.send("t", b"child"))
        assert "forked" in in_child(lambda: producer.send_many("t", [b"child"]))

    def another() -> int:
        with client.producer() as mine:
            return mine.send("t", b"child").result(5).offset

    assert in_child(another) == 4
    assert stand_in.log().values == [*[b"parent"] * 4, b"child"]


def test_an_asyncio_client_says_that_it_stayed_with_the_parent(stand_in: StandIn) -> None:
    async def parent() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            await client.ping()

            def child() -> None:
                coroutine = client.ping()
                try:
                    coroutine.send(None)
                finally:
                    coroutine.close()

            assert "forked" in in_child(child)
            await client.ping()

    asyncio.run(parent())


def test_a_child_does_not_give_back_what_its_parent_polled() -> None:
    with GroupStandIn() as stand_in, quivermq.connect(stand_in.address) as client:
        client.produce_many("t", [b"v"] * 2)
        (mine,) = client.poll("t", group="g", max_messages=1)

        def work() -> int:
            (found,) = client.poll("t", group="g")
            client.close()
            return found.offset

        assert in_child(work) == 1
        assert stand_in.polls[0].consumer != stand_in.polls[-1].consumer
        (release,) = stand_in.releases
        assert release.consumer == stand_in.polls[-1].consumer
        mine.ack()
        assert stand_in.lot().done == {0}


def test_a_subscription_stays_with_the_parent() -> None:
    with GroupStandIn() as stand_in, quivermq.connect(stand_in.address) as client:
        client.produce_many("t", [b"v"] * 2)
        with client.subscribe("t", group="g") as subscription:
            first = next(subscription)
            told = in_child(lambda: subscription.ack([first]))
            assert "forked" in told
            first.ack()
