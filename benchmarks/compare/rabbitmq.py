"""RabbitMQ with quorum queues, driven by aio-pika on uvloop.

Publisher confirms, up to 1,000 waited for together; consumers with a prefetch of twice what they
acknowledge at once, at least 1,000; `ack(multiple=True)`. A quorum queue syncs before it confirms,
always: RabbitMQ has one class of durability. A group is a queue that is bound to the exchange.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.compare.system import (
    ARRIVAL_SECONDS_MAX,
    LOOPBACK,
    START_SECONDS_MAX,
    Arrivals,
    AsyncSystem,
    NotInstalled,
    Sample,
    free_ports,
    version_of,
)

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Debian's: those in /usr/sbin change the user first."""
CONFIRMS_MAX = 1_000
PREFETCHED_MIN = 1_000
QUORUM = {"x-queue-type": "quorum"}


class RabbitMQ(AsyncSystem):
    """One server, or three in a cluster with every queue on all of them."""

    name = "RabbitMQ"
    needs = ("aio_pika",)

    def __init__(self, *, nodes: int, fsync: bool) -> None:
        super().__init__(nodes=nodes, fsync=fsync)
        self._url = ""
        self._connection: Any = None
        self._channel: Any = None
        self._exchange: Any = None
        self._queues: list[Any] = []
        self._endless = cycle([b""])

    def start(self) -> None:
        script = SCRIPTS / "rabbitmq-server"
        if not script.exists():
            raise NotInstalled(f"{script} is not installed")
        names_port, *ports = free_ports(1 + 2 * self.nodes)
        # A name server of its own, in the foreground: the script would leave one behind.
        self.spawn("epmd", "-port", str(names_port), "-address", LOOPBACK)
        self.wait_for(names_port)
        names = [f"bench{number}@localhost" for number in range(self.nodes)]
        for number, name in enumerate(names):
            port, peer_port = ports[2 * number : 2 * number + 2]
            environment = self._environment(name, port, peer_port, names_port, names)
            # All at once: each waits for the others, to form a cluster.
            self.spawn(str(script), env=environment)
        for port in ports[::2]:
            self.wait_for(port)
        self._url = f"amqp://guest:guest@{LOOPBACK}:{ports[0]}/"
        subprocess.run(
            [str(SCRIPTS / "rabbitmqctl"), "-n", names[0], "await_online_nodes", str(self.nodes)],
            env=environment, check=True, capture_output=True, timeout=START_SECONDS_MAX,
        )  # fmt: skip
        self.run(self._begin())

    def _environment(
        self, name: str, port: int, peer_port: int, names_port: int, names: list[str]
    ) -> dict[str, str]:
        folder = self.folder / name.partition("@")[0]
        folder.mkdir()
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [
            f"cluster_formation.classic_config.nodes.{number} = {other}"
            for number, other in enumerate(names, 1)
        ]
        configuration = folder / "rabbitmq.conf"
        configuration.write_text("\n".join(lines) + "\n")
        (folder / "plugins").write_text("[].\n")
        return os.environ | {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(peer_port),
            "RABBITMQ_MNESIA_BASE": str(folder),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_CONFIG_FILE": str(configuration.with_suffix("")),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
        }

    async def _begin(self) -> None:
        self._connection = await self._connect()
        self._channel = await self._connection.channel(publisher_confirms=True)

    async def _connect(self) -> Any:
        import aio_pika  # noqa: PLC0415  (not everywhere)

        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            # It listens a moment before it lets anybody in.
            try:
                return await aio_pika.connect(self._url)
            except (OSError, aio_pika.exceptions.AMQPError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    def stop(self) -> None:
        if self._connection is not None:
            self.run(self._connection.close())
        self.close_loop()

    def versions(self) -> str:
        server = self._connection.transport.connection.server_properties["version"]
        if isinstance(server, bytes):
            server = server.decode()
        return f"RabbitMQ {server}, {version_of('aio-pika')}"

    def open_topic(self, values: Sequence[bytes]) -> None:
        self.values, self._endless = values, cycle(values)
        self.topic = self.next_name()
        self.run(self._open_exchange())

    async def _open_exchange(self) -> None:
        self._exchange = await self._channel.declare_exchange(self.topic, "fanout", durable=True)
        self._queues = []
        await self._add_queue()

    async def _add_queue(self) -> Any:
        queue = await self._channel.declare_queue(self.next_name(), durable=True, arguments=QUORUM)
        await queue.bind(self._exchange)
        self._queues.append(queue)
        return queue

    async def _drop_queue(self, queue: Any) -> None:
        self._queues.remove(queue)
        await queue.delete(if_unused=False, if_empty=False)

    def drop_topic(self) -> None:
        self.run(self._drop_exchange())

    async def _drop_exchange(self) -> None:
        for queue in list(self._queues):
            await self._drop_queue(queue)
        await self._exchange.delete()

    def produce(self, batch: int, seconds: float) -> Sample:
        return self.run(self._produce(batch, seconds))

    async def _produce(self, batch: int, seconds: float) -> Sample:
        next_batch = self.batches_of(batch)
        calls = max(1, CONFIRMS_MAX // batch)

        async def step() -> int:
            values = [value for _ in range(calls) for value in next_batch()]
            for at in range(0, len(values), CONFIRMS_MAX):
                await asyncio.gather(
                    *(self._publish(value) for value in values[at : at + CONFIRMS_MAX])
                )
            return len(values)

        return await self.timed_async(seconds, step)

    async def _publish(self, value: bytes) -> None:
        import aio_pika  # noqa: PLC0415  (not everywhere)

        message = aio_pika.Message(value, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._exchange.publish(message, "")

    async def _publish_next(self) -> None:
        await self._publish(next(self._endless))

    def consume(self, batch: int, seconds: float) -> Sample:
        return self.run(self._consume(batch, seconds))

    async def _consume(self, batch: int, seconds: float) -> Sample:
        """Messages leave a queue for good: some are produced before."""
        await self._produce(CONFIRMS_MAX, 2 * seconds)
        source = self._queues[0]
        async with self._connection.channel() as channel:
            await channel.set_qos(prefetch_count=max(PREFETCHED_MIN, 2 * batch))
            queue = await channel.get_queue(source.name)
            left = queue.declaration_result.message_count
            is_done = asyncio.Event()
            taken = 0
            sample: Sample | None = None

            async def receive(message: Any) -> None:
                nonlocal taken, sample
                taken += 1
                is_last = taken == left
                if taken % batch == 0 or is_last:
                    await message.ack(multiple=True)
                    if sample is None and (is_last or watch.seconds >= seconds):
                        sample = watch.stop(taken)
                        is_done.set()

            watch = self.watch()
            tag = await queue.consume(receive)
            await asyncio.wait_for(is_done.wait(), seconds + ARRIVAL_SECONDS_MAX)
            await queue.cancel(tag)
        assert sample is not None
        return sample

    def lone(self, count: int) -> Sample:
        return self.run(self.timed_laps_async(count, self._publish_next))

    def push(self, count: int) -> Sample:
        return self.run(self._groups(1, lambda arrivals: self._pushes(count, arrivals)))

    async def _pushes(self, count: int, arrivals: Arrivals) -> Sample:
        return await self.timed_pushes(count, self._publish_next, arrivals)

    async def _groups(self, count: int, measure: Any) -> Sample:
        """With so many queues, and no other one, each with a consumer."""
        first = self._queues[0]
        await first.unbind(self._exchange)
        arrivals = Arrivals()

        async def receive(message: Any) -> None:
            arrivals.note()
            await message.ack()

        async with AsyncExitStack() as opened:
            channel = await opened.enter_async_context(self._connection.channel())
            await channel.set_qos(prefetch_count=PREFETCHED_MIN)
            queues = [await self._add_queue() for _ in range(count)]
            for queue in queues:
                await (await channel.get_queue(queue.name)).consume(receive)
            sample: Sample = await measure(arrivals)
        for queue in queues:
            await self._drop_queue(queue)
        await first.bind(self._exchange)
        return sample

    def groups(self, count: int, seconds: float) -> Sample:
        return self.run(
            self._groups(
                count,
                lambda arrivals: self.timed_fan_out(seconds, count, self._publish_next, arrivals),
            )
        )

    def clients(self, count: int, seconds: float) -> Sample:
        return self.run(self._clients(count, seconds))

    async def _clients(self, count: int, seconds: float) -> Sample:
        import aio_pika  # noqa: PLC0415  (not everywhere)

        connections = [await self._connect() for _ in range(count)]

        async def produce_with(connection: Any) -> Any:
            channel = await connection.channel(publisher_confirms=True)
            exchange = await channel.get_exchange(self.topic)
            mode = aio_pika.DeliveryMode.PERSISTENT
            return lambda: exchange.publish(
                aio_pika.Message(next(self._endless), delivery_mode=mode), ""
            )

        try:
            return await self.timed_clients(
                seconds, [await produce_with(connection) for connection in connections]
            )
        finally:
            for connection in connections:
                await connection.close()
