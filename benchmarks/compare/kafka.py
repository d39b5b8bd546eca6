"""Apache Kafka, driven by confluent-kafka (librdkafka).

`QUIVER_KAFKA_JARS` names a folder with the jars of Kafka 4 (the `libs` of its distribution, or
kafka_2.13 with its dependencies from Maven). One process a node is broker and controller. Topics
have one partition. `fetch.queue.backoff.ms=1` keeps the consumer from pausing a second when its
queue is full; fetches are large; after a batch its offset is committed asynchronously, unless an
earlier commit is still on its way: then the next one says it, too.
"""

import os
import queue
import subprocess
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.compare.system import (
    ARRIVAL_SECONDS_MAX,
    FAN_OUT_MAX,
    IDLE_SECONDS,
    LOOPBACK,
    START_SECONDS_MAX,
    WARM_UP_LAPS,
    NotInstalled,
    Sample,
    System,
    free_ports,
    version_of,
)

JARS_VARIABLE = "QUIVER_KAFKA_JARS"
SENT_AT_ONCE = 1_000
"""Messages between two looks at the clock."""
PRODUCER = {
    "acks": "all",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
    "batch.num.messages": 100_000,
    "message.max.bytes": 16 << 20,
    "socket.nagle.disable": True,
}
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 << 10,
    "fetch.max.bytes": 64 << 20,
    "max.partition.fetch.bytes": 16 << 20,
    "message.max.bytes": 16 << 20,
    "socket.nagle.disable": True,
}


class Kafka(System):
    """Servers that leave syncing to the kernel, or sync after every message."""

    name = "Apache Kafka"
    needs = ("confluent_kafka",)

    def __init__(self, *, nodes: int, fsync: bool) -> None:
        super().__init__(nodes=nodes, fsync=fsync)
        self._jars = Path()
        self._servers = ""
        self._admin: Any = None
        self._endless = cycle([b""])

    def start(self) -> None:
        named = os.environ.get(JARS_VARIABLE, "")
        self._jars = Path(named)
        if not named or not list(self._jars.glob("kafka_*.jar")):
            raise NotInstalled(f"{JARS_VARIABLE} does not name a folder with Kafka's jars")
        ports = free_ports(2 * self.nodes)
        listening, controlling = ports[: self.nodes], ports[self.nodes :]
        voters = ",".join(f"{n}@{LOOPBACK}:{port}" for n, port in enumerate(controlling, 1))
        first, *others = uuid.uuid4().bytes
        # It must not look like an option, which a dash in front does.
        cluster = urlsafe_b64encode(bytes((first & 0x7F, *others))).decode().rstrip("=")
        for number, (port, controller) in enumerate(zip(listening, controlling, strict=True), 1):
            settings = self._settings(number, port, controller, voters)
            self._java(settings.parent, "kafka.tools.StorageTool", "format", "-t", cluster, "-c",
                       str(settings))  # fmt: skip
            self.spawn(*self._command("kafka.Kafka"), str(settings))
        for port in listening:
            self.wait_for(port)
        self._servers = ",".join(f"{LOOPBACK}:{port}" for port in listening)
        self._begin()

    def _settings(self, number: int, port: int, controller: int, voters: str) -> Path:
        folder = self.folder / str(number)
        folder.mkdir()
        majority = self.nodes // 2 + 1
        lines = {
            "process.roles": "broker,controller",
            "node.id": number,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": voters,
            "log.dirs": folder / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": self.nodes,
            "min.insync.replicas": majority,
            "offsets.topic.replication.factor": self.nodes,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": self.nodes,
            "transaction.state.log.min.isr": majority,
            "group.initial.rebalance.delay.ms": 0,
            "message.max.bytes": 16 << 20,
            "replica.fetch.max.bytes": 16 << 20,
        }
        settings = folder / "server.properties"
        settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return settings

    def _command(self, name: str) -> list[str]:
        return ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", f"{self._jars}/*", name]

    def _java(self, folder: Path, *arguments: str) -> None:
        try:
            subprocess.run(
                [*self._command(arguments[0]), *arguments[1:]],
                cwd=folder, check=True, capture_output=True, timeout=START_SECONDS_MAX,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise NotInstalled("java is not installed") from error
        except subprocess.CalledProcessError as error:
            last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise NotInstalled(f"Kafka cannot make its folders: {last}") from error

    def _begin(self) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415  (not everywhere)

        self._admin = AdminClient({"bootstrap.servers": self._servers})
        deadline = time.monotonic() + START_SECONDS_MAX
        while len(self._admin.list_topics(timeout=30).brokers) < self.nodes:
            if time.monotonic() > deadline:
                raise TimeoutError("the brokers of Kafka did not form a cluster")
            time.sleep(0.2)
        # The first commit ever makes the topic that keeps them.
        self.open_topic([b"first"])
        reader = self._reader(0)
        reader.take(1)
        reader.commit()
        reader.close()
        self.drop_topic()

    def stop(self) -> None:
        self._admin = None

    def versions(self) -> str:
        import confluent_kafka  # noqa: PLC0415  (not everywhere)

        (jar, *_) = sorted(self._jars.glob("kafka_*.jar"))
        server = jar.stem.rpartition("-")[2]
        library = confluent_kafka.libversion()[0]
        return f"Kafka {server}, {version_of('confluent-kafka')} with librdkafka {library}"

    def open_topic(self, values: Sequence[bytes]) -> None:
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415  (not everywhere)

        self.values, self._endless = values, cycle(values)
        self.topic = self.next_name()
        settings = {"flush.messages": "1"} if self.fsync else {}
        topic = NewTopic(self.topic, 1, self.nodes, config=settings)
        for made in self._admin.create_topics([topic]).values():
            made.result(START_SECONDS_MAX)
        producer = self._producer()
        producer.produce(self.topic, values[0])
        producer.flush(START_SECONDS_MAX)

    def drop_topic(self) -> None:
        for done in self._admin.delete_topics([self.topic]).values():
            done.result(START_SECONDS_MAX)

    def _producer(self, **more: object) -> Any:
        from confluent_kafka import Producer  # noqa: PLC0415  (not everywhere)

        return Producer({"bootstrap.servers": self._servers, **PRODUCER, **more})

    def _reader(self, offset: int) -> "Reader":
        return Reader(self._servers, self.next_name(), self.topic, offset)

    def produce(self, batch: int, seconds: float) -> Sample:
        producer = self._producer()
        producer.list_topics(self.topic, timeout=30)
        topic, next_batch = self.topic, self.batches_of(batch)
        values = self.values[:SENT_AT_ONCE]
        calls = max(1, SENT_AT_ONCE // batch)

        def send_singles() -> int:
            for value in values:
                produce_waiting(producer, topic, value)
            producer.poll(0)
            return len(values)

        def send_lists() -> int:
            for _ in range(calls):
                self._produce_list(producer, [{"value": value} for value in next_batch()])
            producer.poll(0)
            return calls * batch

        step = send_singles if batch == 1 else send_lists
        return self.timed(seconds, step, lambda: flush(producer))

    def _produce_list(self, producer: Any, messages: list[dict[str, bytes]]) -> None:
        while messages:
            taken = producer.produce_batch(self.topic, messages)
            if taken == len(messages):
                return
            # Those that its full queue refused carry an error; all others were taken.
            messages = [{"value": one["value"]} for one in messages if "_error" in one]
            producer.poll(0.005)

    def consume(self, batch: int, seconds: float) -> Sample:
        reader = self._reader(0)
        left = reader.end() - reader.take(1)

        def step() -> int:
            nonlocal left
            taken = reader.take(min(batch, left)) if left > 0 else 0
            left -= taken
            return taken

        try:
            return self.timed(seconds, step, reader.commit)
        finally:
            reader.close()

    def lone(self, count: int) -> Sample:
        producer = self._producer(**{"linger.ms": 0})

        def step() -> None:
            producer.produce(self.topic, next(self._endless))
            producer.flush()

        return self.timed_laps(count, step)

    def push(self, count: int) -> Sample:
        producer = self._producer(**{"linger.ms": 0})
        reader = self._reader(self._end())
        arrived: queue.SimpleQueue[float] = queue.SimpleQueue()
        is_over = threading.Event()

        def receive() -> None:
            while not is_over.is_set():
                for _ in range(reader.take(1, 0.2)):
                    arrived.put(time.perf_counter())

        receiver = threading.Thread(target=receive)
        receiver.start()
        try:
            return self._timed_pushes(count, producer, arrived)
        finally:
            is_over.set()
            receiver.join()
            reader.close()

    def _timed_pushes(
        self, count: int, producer: Any, arrived: "queue.SimpleQueue[float]"
    ) -> Sample:
        watch, laps = self.watch(), []
        for lap in range(-WARM_UP_LAPS, count):
            if lap == 0:
                watch = self.watch()
            began = time.perf_counter()
            producer.produce(self.topic, next(self._endless))
            producer.flush()
            laps.append(arrived.get(timeout=ARRIVAL_SECONDS_MAX) - began)
            time.sleep(IDLE_SECONDS)
        return watch.stop(count, laps[WARM_UP_LAPS:])

    def clients(self, count: int, seconds: float) -> Sample:
        """Threads: its asynchronous client is a thread behind each call, too."""
        producers = [self._producer(**{"linger.ms": 0}) for _ in range(count)]
        ready = threading.Barrier(count + 1)
        begun = threading.Barrier(count + 1)
        sent = [0] * count

        def repeat(number: int) -> None:
            producer = producers[number]
            producer.produce(self.topic, self.values[0])
            producer.flush()
            ready.wait()
            begun.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                producer.produce(self.topic, self.values[0])
                producer.flush()
                sent[number] += 1

        threads = [threading.Thread(target=repeat, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        ready.wait()
        watch = self.watch()
        begun.wait()
        for thread in threads:
            thread.join()
        return watch.stop(sum(sent))

    def groups(self, count: int, seconds: float) -> Sample:
        """One thread asks all consumers in turn."""
        end = self._end()
        readers = [self._reader(end) for _ in range(count)]
        producer = self._producer(**{"linger.ms": 0})
        received = 0

        def produce() -> None:
            producer.produce(self.topic, next(self._endless))
            producer.poll(0)

        def take_until(wanted: int) -> None:
            nonlocal received
            deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
            while received < wanted:
                received += sum(reader.take(FAN_OUT_MAX, 0) for reader in readers)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{received} of {wanted} messages came")

        try:
            produce()
            take_until(count)
            received, sent, watch = 0, 0, self.watch()
            while watch.seconds < seconds:
                produce()
                sent += 1
                take_until(count * (sent - FAN_OUT_MAX))
            flush(producer)
            take_until(count * sent)
            return watch.stop(sent)
        finally:
            for reader in readers:
                reader.close()

    def _end(self) -> int:
        """The next message's offset."""
        reader = self._reader(0)
        try:
            return reader.end()
        finally:
            reader.close()


class Reader:
    """A consumer that was given the partition: there is no other member to share it with."""

    def __init__(self, servers: str, group: str, topic: str, offset: int) -> None:
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415  (not everywhere)

        settings = {"bootstrap.servers": servers, "group.id": group, **CONSUMER}
        self._consumer = Consumer(settings | {"on_commit": self._note_commit})
        self._topic = topic
        self._consumer.assign([TopicPartition(topic, 0, offset)])
        self._is_committing = False

    def take(self, count: int, seconds: float = ARRIVAL_SECONDS_MAX) -> int:
        """So many messages at most, and commit."""
        found = len(self._consumer.consume(count, timeout=seconds))
        if found and not self._is_committing:
            self._is_committing = True
            self._consumer.commit(asynchronous=True)
        return found

    def _note_commit(self, *_: object) -> None:
        self._is_committing = False

    def commit(self) -> None:
        """What was taken, at last."""
        self._consumer.commit(asynchronous=False)

    def end(self) -> int:
        """The offset of the topic's next message."""
        limits = self._consumer.get_watermark_offsets(topic_partition(self._topic), timeout=30)
        return int(limits[1])

    def close(self) -> None:
        self._consumer.close()


def topic_partition(topic: str) -> Any:
    from confluent_kafka import TopicPartition  # noqa: PLC0415  (not everywhere)

    return TopicPartition(topic, 0)


def produce_waiting(producer: Any, topic: str, value: bytes) -> None:
    """Again, when its queue was full."""
    while True:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.005)
        else:
            return


def flush(producer: Any) -> None:
    left = producer.flush(ARRIVAL_SECONDS_MAX)
    if left:
        raise TimeoutError(f"{left} messages were not acknowledged")
