"""The kombu transport against a real broker: what kombu's own tests of transports ask, and more."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub
from kombu.pools import connections

import quivermq
import quivermq.integrations.kombu
from quivermq.integrations.kombu.names import GROUP
from quivermq.testing import Cluster
from tests.client.brokers import BrokerThread
from tests.tls.stage import Certificates

_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    started = BrokerThread(Path(tmp_path_factory.mktemp("broker")))
    yield started
    started.stop()


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[quivermq.Client]:
    with quivermq.connect(broker.address) as connected:
        yield connected


@pytest.fixture
def connect(broker: BrokerThread) -> Iterator[Callable[..., kombu.Connection]]:
    """Opens connections, which are closed at the end; a virtual host a test."""
    opened = []
    virtual_host = f"test{next(_numbers)}"

    def open_one(**options: Any) -> kombu.Connection:
        url = f"quiver://{broker.address}/{virtual_host}"
        opened.append(kombu.Connection(url, transport_options=options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.release()
    connections.clear()


Connect = Callable[..., kombu.Connection]


class Inbox:
    """A consumer that keeps what it is given."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue, **options: Any) -> None:
        self.messages: list[Any] = []
        self.channel = connection.channel()
        self._connection = connection
        self._consumer = kombu.Consumer(
            self.channel, list(queues), on_message=self.messages.append, **options
        )
        self._consumer.consume()

    @property
    def bodies(self) -> list[Any]:
        return [message.decode() for message in self.messages]

    def wait_for(self, number: int, seconds: float = 20.0) -> list[Any]:
        deadline = time.monotonic() + seconds
        while len(self.messages) < number:
            self._connection.drain_events(timeout=deadline - time.monotonic())
        return self.bodies

    def is_quiet(self, seconds: float = 0.5) -> bool:
        with pytest.raises(socket.timeout):
            self._connection.drain_events(timeout=seconds)
        return True

    def cancel(self) -> None:
        self._consumer.cancel()


def publish(connection: kombu.Connection, queue: kombu.Queue, *bodies: Any, **more: Any) -> None:
    producer = kombu.Producer(connection.default_channel)
    for body in bodies:
        producer.publish(
            body,
            exchange=queue.exchange,
            routing_key=queue.routing_key or queue.name,
            declare=[queue],
            **more,
        )


def topic_of(connection: kombu.Connection, queue: str) -> str:
    return str(connection.transport.names.queue(queue))


def test_messages_come_in_order_with_headers_and_are_gone_when_acknowledged(
    connect: Connect, client: quivermq.Client
) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, *range(50), headers={"a": "1"})
    assert queue(connection.default_channel).queue_declare(passive=True).message_count == 50
    inbox = Inbox(connection, queue)
    assert inbox.wait_for(50) == list(range(50))
    assert inbox.messages[7].headers == {"a": "1"}
    assert not inbox.messages[7].delivery_info.get("redelivered")
    for message in inbox.messages:
        message.ack()
    inbox.channel.close()
    group = client.group(topic_of(connection, "jobs"), GROUP)
    assert (group.done, group.lag, group.in_flight) == (50, 0, 0)


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_every_serializer_and_compression_travels(connect: Connect, serializer: str) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    body = {"name": "Zoë", "numbers": [1, 2]}
    publish(connection, queue, body, serializer=serializer, compression="zlib")
    assert Inbox(connection, queue, accept=[serializer]).wait_for(1) == [body]


def test_exchanges_route_by_bindings_that_another_connection_made(connect: Connect) -> None:
    consuming, publishing = connect(), connect()
    direct = kombu.Exchange("direct", "direct")
    topics = kombu.Exchange("topics", "topic")
    fanout = kombu.Exchange("fanout", "fanout")
    inbox = Inbox(
        consuming,
        kombu.Queue("a", direct, routing_key="a"),
        kombu.Queue("b", direct, routing_key="b"),
        kombu.Queue("eu", topics, routing_key="orders.*.eu"),
        kombu.Queue("all", topics, routing_key="orders.#"),
        kombu.Queue("one", fanout),
        kombu.Queue("two", fanout),
    )
    with kombu.Producer(publishing.channel()) as producer:
        for exchange, key in [
            (direct, "a"), (direct, "nobody"), (topics, "orders.7.eu"), (topics, "orders.8.us"),
            (topics, "bills.7.eu"), (fanout, "whatever"),
        ]:  # fmt: skip
            producer.publish(f"{exchange.name} {key}", exchange=exchange, declare=[exchange],
                             routing_key=key)  # fmt: skip
    assert sorted(inbox.wait_for(6)) == [
        "direct a",
        "fanout whatever",
        "fanout whatever",
        "topics orders.7.eu",
        "topics orders.7.eu",
        "topics orders.8.us",
    ]
    assert inbox.is_quiet()


def test_a_queue_that_is_unbound_or_deleted_gets_nothing(connect: Connect) -> None:
    connection, other = connect(), connect()
    fanout = kombu.Exchange("fanout", "fanout")
    queues = [kombu.Queue(name, fanout) for name in ("kept", "unbound", "deleted", "elsewhere")]
    bound = [queue(connection.default_channel) for queue in queues]
    for each in bound:
        each.declare()
    bound[1].unbind_from(fanout)
    bound[2].delete()
    # This connection did not bind it, and so does not know from what it is to be unbound.
    other.default_channel.queue_delete("elsewhere")
    with other.channel() as channel:
        kombu.Producer(channel).publish("x", exchange=fanout, declare=[fanout])
        sizes = [channel._size(queue.name) for queue in queues]
    assert sizes == [1, 0, 0, 0]
    left = connection.transport.bindings.of_exchange("fanout", fresh=True)
    assert [binding.queue for binding in left] == ["kept"]


def test_higher_priorities_come_first(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    for priority in (0, 3, 9, 6):
        publish(connection, queue, priority, priority=priority)
    assert Inbox(connection, queue).wait_for(4) == [9, 6, 3, 0]


def test_a_prefetch_count_bounds_what_is_leased(connect: Connect, client: quivermq.Client) -> None:
    connection = connect()
    queues = [kombu.Queue("one"), kombu.Queue("two")]
    for queue in queues:
        publish(connection, queue, *range(20))
    inbox = Inbox(connection, *queues, prefetch_count=3)
    inbox.wait_for(3)
    assert inbox.is_quiet()

    def in_flight() -> int:
        groups = [client.group(topic_of(connection, queue.name), GROUP) for queue in queues]
        return sum(group.in_flight for group in groups)

    deadline = time.monotonic() + 20
    while in_flight() != 3:
        assert time.monotonic() < deadline, "the surplus of the other queue did not go back"
        time.sleep(0.02)
    seen = 0
    while seen < 40:
        inbox.wait_for(seen + 1)
        for message in inbox.messages[seen:]:
            message.ack()
            seen += 1
    assert sorted(inbox.bodies) == sorted([*range(20)] * 2)


def test_a_message_that_is_requeued_comes_again_and_says_so(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "x")
    with connection.SimpleQueue(queue) as simple:
        simple.get(timeout=20).requeue()
        again = simple.get(timeout=20)
        assert again.payload == "x"
        assert again.delivery_info["redelivered"]
        again.ack()
        with pytest.raises(simple.Empty):
            simple.get_nowait()


def test_a_rejected_message_is_a_dead_letter(connect: Connect, client: quivermq.Client) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "poison")
    with connection.SimpleQueue(queue) as simple:
        simple.get(timeout=20).reject()
    topic = topic_of(connection, "jobs")
    deadline = time.monotonic() + 20
    while not (letters := client.dead_letters(topic)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [letter.reason for letter in letters] == ["rejected by a consumer"]
    # Put back, it is a message like any other.
    client.redrive(topic)
    assert Inbox(connection, queue).wait_for(1) == ["poison"]


def test_a_message_that_fails_too_often_is_a_dead_letter(
    connect: Connect, client: quivermq.Client
) -> None:
    connection, queue = connect(max_deliveries=2), kombu.Queue("jobs")
    publish(connection, queue, "poison")
    with connection.SimpleQueue(queue) as simple:
        for _ in range(2):
            simple.get(timeout=20).requeue()
        with pytest.raises(simple.Empty):
            simple.get_nowait()
    topic = topic_of(connection, "jobs")
    deadline = time.monotonic() + 20
    while not client.dead_letters(topic) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(client.dead_letters(topic)) == 1


def test_a_foreign_message_in_the_topic_of_a_queue_is_a_dead_letter(
    connect: Connect, client: quivermq.Client
) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "first")
    client.produce(topic_of(connection, "jobs"), b"not of kombu")
    publish(connection, queue, "last")
    assert Inbox(connection, queue).wait_for(2) == ["first", "last"]


def test_unacknowledged_messages_go_to_others_when_the_channel_closes(connect: Connect) -> None:
    first, second, queue = connect(), connect(), kombu.Queue("jobs")
    publish(first, queue, *range(10))
    holding = Inbox(first, queue)
    holding.wait_for(10)
    waiting = Inbox(second, queue)
    assert waiting.is_quiet()
    holding.channel.close()
    assert sorted(waiting.wait_for(10)) == list(range(10))
    assert not any(message.delivery_info.get("redelivered") for message in waiting.messages)


def test_a_message_stays_with_its_worker_for_longer_than_the_visibility(connect: Connect) -> None:
    """A task with `acks_late` may take any time."""
    first, second = connect(visibility_timeout=4), connect(visibility_timeout=4)
    queue = kombu.Queue("jobs")
    publish(first, queue, "long")
    # Without a count it would take the message itself, should it come again.
    working = Inbox(first, queue, prefetch_count=1)
    working.wait_for(1)
    idle = Inbox(second, queue)
    assert idle.is_quiet(6.0)
    working.messages[0].ack()
    assert idle.is_quiet()


def test_a_task_with_an_eta_waits_in_the_broker(connect: Connect, client: quivermq.Client) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    due = datetime.now(UTC) + timedelta(seconds=2)
    publish(connection, queue, "later", headers={"eta": due.isoformat()})
    publish(connection, queue, "now")
    inbox = Inbox(connection, queue)
    assert inbox.wait_for(1) == ["now"]
    assert client.group(topic_of(connection, "jobs"), GROUP).delayed == 1
    assert inbox.wait_for(2) == ["now", "later"]
    assert datetime.now(UTC) >= due


def test_messages_that_are_too_old_are_not_delivered(connect: Connect) -> None:
    connection = connect()
    queue = kombu.Queue("jobs")
    short = kombu.Queue("short", message_ttl=0.2)
    publish(connection, queue, "expires", expiration=0.2)
    publish(connection, short, "expires")
    threading.Event().wait(0.3)
    publish(connection, queue, "fresh")
    inbox = Inbox(connection, queue, short)
    assert inbox.wait_for(1) == ["fresh"]
    assert inbox.is_quiet()


def test_a_purge_drops_what_waits_and_what_is_delayed_and_spares_what_is_worked_on(
    connect: Connect, client: quivermq.Client
) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "worked on")
    inbox = Inbox(connection, queue, prefetch_count=1)
    inbox.wait_for(1)
    publish(connection, queue, *range(5))
    due = datetime.now(UTC) + timedelta(hours=1)
    publish(connection, queue, "later", headers={"eta": due.isoformat()})
    channel = connection.channel()
    assert channel._size("jobs") == 6
    assert channel.queue_purge("jobs") == 6
    assert channel._size("jobs") == 0
    assert client.group(topic_of(connection, "jobs"), GROUP).in_flight == 1
    inbox.messages[0].ack()
    assert inbox.is_quiet()
    assert channel.queue_purge("no such queue") == 0


def test_queues_of_a_channel_end_with_it(connect: Connect, client: quivermq.Client) -> None:
    connection = connect()
    fanout = kombu.Exchange("fanout", "fanout")
    channel = connection.channel()
    kombu.Queue("mine", fanout, auto_delete=True, durable=False)(channel).declare()
    kombu.Queue("ours", fanout)(channel).declare()
    channel.close()
    names = client.topic_names()
    assert topic_of(connection, "ours") in names
    assert topic_of(connection, "mine") not in names
    left = connection.transport.bindings.of_exchange("fanout", fresh=True)
    assert [binding.queue for binding in left] == ["ours"]


def test_a_queue_that_expired_is_swept_away_by_the_next_that_may(
    connect: Connect, client: quivermq.Client
) -> None:
    connection = connect()
    for name in ("dead", "alive"):
        kombu.Queue(name, expires=60, durable=False)(connection.default_channel).declare()
    # What the broker does with a group that is not polled for so long.
    client.delete_group(topic_of(connection, "dead"), GROUP)
    assert client.topic(topic_of(connection, "alive")).group_idle_retention == 60
    kombu.Queue("next", expires=60, durable=False)(connect().default_channel).declare()
    names = client.topic_names()
    assert topic_of(connection, "dead") not in names
    assert {topic_of(connection, name) for name in ("alive", "next")} <= set(names)


def test_a_reply_to_a_program_that_has_ended_is_dropped(
    connect: Connect, client: quivermq.Client
) -> None:
    connection = connect()
    kombu.Producer(connection.default_channel).publish("reply", routing_key="gone")
    assert topic_of(connection, "gone") not in client.topic_names()


def test_a_task_for_a_queue_that_was_deleted_elsewhere_is_not_lost(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "before")
    connect().default_channel.queue_delete("jobs")
    publish(connection, queue, "after")
    assert Inbox(connection, queue).wait_for(1) == ["after"]


def test_a_consumer_hears_that_its_queue_was_deleted(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    inbox = Inbox(connection, queue)
    connect().default_channel.queue_delete("jobs")
    with pytest.raises(connection.connection_errors):
        inbox.wait_for(1)


def test_a_consumer_that_failed_at_a_message_gets_the_ones_behind_it(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, *range(5))
    seen = []

    def handle(message: Any) -> None:
        seen.append(message.decode())
        message.ack()
        if seen == [0]:
            raise ValueError("no good")

    with kombu.Consumer(connection.channel(), [queue], on_message=handle):
        with pytest.raises(ValueError, match="no good"):
            connection.drain_events(timeout=20)
        while len(seen) < 5:
            connection.drain_events(timeout=20)
    assert seen == [0, 1, 2, 3, 4]


def test_a_passive_declaration_of_no_queue_is_refused(connect: Connect) -> None:
    connection = connect()
    with pytest.raises(connection.channel_errors):
        kombu.Queue("none")(connection.default_channel).queue_declare(passive=True)


def test_the_event_loop_of_a_worker_is_woken(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    inbox = Inbox(connection, queue, prefetch_count=1)
    hub = Hub()
    try:
        connection.register_with_event_loop(hub)
        publish(connection, queue, *range(3))
        deadline = time.monotonic() + 20
        acknowledged = 0
        while acknowledged < 3 and time.monotonic() < deadline:
            hub.run_once()
            for message in inbox.messages[acknowledged:]:
                message.ack()
                acknowledged += 1
        assert inbox.bodies == [0, 1, 2]
        connection.release()
        assert not hub.readers
    finally:
        hub.close()


def test_a_forked_child_publishes_and_leaves_the_messages_of_its_parent_alone(
    connect: Connect,
) -> None:
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "parent")
    inbox = Inbox(connection, queue)
    inbox.wait_for(1)
    child = os.fork()
    if not child:
        status = 1
        try:
            publish(connection, queue, "child")
            connection.release()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert inbox.wait_for(2) == ["parent", "child"]
    for message in inbox.messages:
        message.ack()
    assert inbox.is_quiet()


def test_a_connection_lives_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path / "broker")
    try:
        with kombu.Connection(f"quiver://{broker.address}") as connection:
            queue = kombu.Queue("jobs")
            inbox = Inbox(connection, queue)
            publish(connection, queue, "before")
            inbox.wait_for(1)
            broker.stop()
            broker.start()
            inbox.messages[0].ack()
            publish(connection, queue, "after", retry=True)
            # A lease that its leader gave moments before the end may be lost with it, and the first
            # message comes again.
            while "after" not in inbox.bodies:
                connection.drain_events(timeout=30)
            assert set(inbox.bodies) == {"before", "after"}
    finally:
        broker.stop()


def test_a_broker_that_is_not_there_is_a_connection_error() -> None:
    connection = kombu.Connection("quiver://127.0.0.1:1?timeout=1")
    with pytest.raises(connection.connection_errors):
        connection._connection_factory()


def test_a_transport_is_found_without_an_import_by_its_class(broker: BrokerThread) -> None:
    connection = kombu.Connection(
        f"quiver://{broker.address}", transport="quivermq.integrations.kombu:Transport"
    )
    with connection:
        assert connection.transport.driver_type == "quiver"
        assert connection.as_uri() == f"quiver://{broker.address}"


def test_a_token_and_tls_by_the_url_are_enough(tmp_path: Path) -> None:
    """A user that may produce, consume and administer the topics of one virtual host."""
    settings = Certificates(tmp_path).settings() | {"users": True}
    with Cluster(nodes=1, settings=settings) as cluster:
        with cluster.connect() as anonymous:
            root = anonymous.users.add("root")
            anonymous.users.grant("root", "admin")
        with cluster.connect(token=root) as admin:
            token = admin.users.add("worker")
            for action in ("produce", "consume", "admin"):
                admin.users.grant("worker", action, topic="shop.")
        place = f":{token}@{cluster.servers}"
        options = f"?tls_ca={cluster.tls_ca}"
        fanout = kombu.Exchange("fanout", "fanout")
        queue = kombu.Queue("jobs", fanout, expires=60)
        with kombu.Connection(f"quiver://{place}/shop{options}") as connection:
            inbox = Inbox(connection, queue)
            publish(connection, queue, "hello")
            assert inbox.wait_for(1) == ["hello"]
            inbox.messages[0].ack()
            assert token not in connection.as_uri()
        with (
            kombu.Connection(f"quiver://{place}/other{options}") as connection,
            pytest.raises(quivermq.QuiverError, match="worker"),
        ):
            publish(connection, queue, "hello")
