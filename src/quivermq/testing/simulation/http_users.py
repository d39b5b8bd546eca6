"""Users of a simulated cluster who speak HTTP, and a small client for them.

The client has the methods of the public one that producers and consumers use, so that they work and
are judged as all others. It repeats nothing: a request without an answer may have had its effect.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple, cast

import h11

from quivermq.client import AsyncClient
from quivermq.errors import ConnectionFailed, QuiverError, Timeout
from quivermq.testing.simulation.stages import GROUPS, MakeUser
from quivermq.testing.trials.users import (
    TIMEOUT_S,
    ConsumingUser,
    ProducingUser,
    Stage,
    User,
)
from quivermq.wire import error_from_proto, proto

BY_HTTP: Final = 5
"""Of so many seeds, one has users who speak HTTP: the first."""
HTTP_PORT: Final = 9600
_PIECE_BYTES: Final = 64 << 10
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class HttpReceipt:
    """Where a message is stored; of several, the first."""

    partition: int
    offset: int
    count: int = 1

    @property
    def first_offset(self) -> int:
        return self.offset


class HttpLease(NamedTuple):
    """The lease and offset that settle a message."""

    name: str

    @property
    def token(self) -> int:
        return int(self.name[16:], 16)


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A message as an answer has it."""

    topic: str
    group: str
    partition: int
    offset: int
    value: bytes
    delivery_count: int
    lease: HttpLease


class UserConnection:
    """One connection, for one request after another; a new one whenever it was lost."""

    def __init__(self, servers: Sequence[str], token: str | None, name: str) -> None:
        self._hosts = [server.partition(":")[0] for server in servers]
        self._token = token
        self._name = name.replace(" ", "-")
        self._numbers = count(1)
        self._parser = h11.Connection(h11.CLIENT)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer; raises refusals, and `ConnectionFailed` or `Timeout` if there is none."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, answer = await self._exchange(method, path, body)
        except TimeoutError as error:
            self.close()
            raise Timeout(f"{method} {path} is not answered") from error
        except (OSError, EOFError, h11.ProtocolError) as error:
            self.close()
            raise ConnectionFailed(f"{method} {path}: {error!r}") from error
        if status == _OK:
            return json.loads(answer)
        found = json.loads(answer)["error"]
        raise error_from_proto(
            proto.Error(code=found["code"], message=found["message"], retriable=found["retriable"])
        )

    async def _exchange(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        reader, writer = await self._connected()
        sent = b"" if body is None else json.dumps(body).encode()
        headers = [
            ("host", self._hosts[0]),
            ("x-request-id", f"{self._name}-{next(self._numbers)}"),
            ("content-length", str(len(sent))),
            ("content-type", "application/json"),
        ]
        if self._token is not None:
            headers.append(("authorization", f"Bearer {self._token}"))
        parser = self._parser
        asked: tuple[h11.Event, ...] = (
            h11.Request(method=method, target=path, headers=headers),
            h11.Data(data=sent),
            h11.EndOfMessage(),
        )
        writer.write(b"".join(parser.send(event) or b"" for event in asked))
        status, pieces = 0, []
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                parser.receive_data(await reader.read(_PIECE_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("the server closed the connection")
        if parser.our_state is parser.their_state is h11.DONE:
            parser.start_next_cycle()
        else:
            self.close()
        return status, b"".join(pieces)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            # The next one, if this one cannot be reached.
            self._hosts.append(self._hosts.pop(0))
            self._parser = h11.Connection(h11.CLIENT)
            self._streams = await asyncio.open_connection(self._hosts[0], HTTP_PORT)
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            with suppress(OSError):
                self._streams[1].transport.abort()
        self._streams = None


class HttpClient:
    """The methods of a client that `ProducingUser` and `ConsumingUser` call, over HTTP."""

    def __init__(self, connection: UserConnection) -> None:
        self._connection = connection

    async def produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        priority: int = 0,
        delay: float = 0.0,
    ) -> HttpReceipt:
        message = {
            "value": value.decode(),
            "key": None if key is None else key.decode(),
            "partition": partition,
            "priority": priority,
            "delay": delay,
        }
        (receipt,) = await self._store(topic, [message])
        return receipt

    async def produce_many(
        self, topic: str, values: Sequence[bytes], *, partition: int, priority: int = 0
    ) -> list[HttpReceipt]:
        return await self._store(
            topic,
            [
                {"value": value.decode(), "partition": partition, "priority": priority}
                for value in values
            ],
        )

    async def _store(self, topic: str, messages: list[dict[str, Any]]) -> list[HttpReceipt]:
        path = f"/v1/topics/{topic}/messages"
        found = await self._connection.ask("POST", path, {"messages": messages})
        return [HttpReceipt(one["partition"], int(one["offset"])) for one in found["receipts"]]

    async def read(
        self, topic: str, partition: int, *, start: int, stop: int
    ) -> AsyncIterator[HttpMessage]:
        path = f"/v1/topics/{topic}/partitions/{partition}/messages"
        found = await self._connection.ask("GET", f"{path}?offset={start}&limit={stop - start}")
        for message in _messages(topic, "", found["messages"]):
            yield message

    async def poll(
        self, topic: str, *, group: str, max_messages: int, wait: float, visibility: float
    ) -> list[HttpMessage]:
        found = await self._connection.ask(
            "POST",
            f"/v1/topics/{topic}/groups/{group}/poll",
            {"max_messages": max_messages, "wait": wait, "visibility": visibility},
        )
        return _messages(topic, group, found["messages"])

    async def ack(self, messages: Sequence[HttpMessage]) -> None:
        await self._settle("ack", messages)

    async def nack(self, messages: Sequence[HttpMessage], *, delay: float) -> None:
        await self._settle("nack", messages, delay=delay)

    async def release(self, messages: Sequence[HttpMessage]) -> None:
        await self._settle("release", messages)

    async def extend(self, messages: Sequence[HttpMessage], seconds: float) -> None:
        await self._settle("extend", messages, seconds=seconds)

    async def reject(self, messages: Sequence[HttpMessage], reason: str) -> None:
        await self._settle("reject", messages, reason=reason)

    async def _settle(self, act: str, messages: Sequence[HttpMessage], **more: object) -> None:
        leases: dict[str, dict[str, Any]] = {}
        for one in messages:
            empty = {"partition": one.partition, "lease": one.lease.name, "offsets": []}
            leases.setdefault(one.lease.name, empty)["offsets"].append(str(one.offset))
        path = f"/v1/topics/{messages[0].topic}/groups/{messages[0].group}/{act}"
        await self._connection.ask("POST", path, {"leases": list(leases.values()), **more})


def _messages(topic: str, group: str, found: Iterable[dict[str, Any]]) -> list[HttpMessage]:
    return [
        HttpMessage(
            topic,
            group,
            one["partition"],
            int(one["offset"]),
            one["value"].encode(),
            one.get("delivery_count", 0),
            HttpLease(one.get("lease", "")),
        )
        for one in found
    ]


class _ByHttp(User):
    """Works over HTTP."""

    async def run(self) -> None:
        connection = UserConnection(self.servers, self.token, self.name)
        client = cast("AsyncClient", HttpClient(connection))
        while not self.stage.is_over:
            try:
                await self.step(client)
                self.stage.world.story.counts["steps by HTTP"] += 1
            except QuiverError as error:
                self.fail(error)
            await asyncio.sleep(self.dice.uniform(0, 2) * self.stage.pace_s)
        connection.close()
        self.is_done = True


class HttpProducingUser(_ByHttp, ProducingUser):
    """Stores one message, or many with one request."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        super().__init__(stage, name, dice)
        self.acts = (self._one, self._keyed, self._many)

    @property
    def producer(self) -> str:
        """Requests have no numbers: one without an answer may be carried out after the next."""
        return f"{self.name} {self._count}"


class HttpConsumingUser(_ByHttp, ConsumingUser):
    """A consumer of a shared group."""


def speaks_http(seed: int) -> bool:
    """Whether some users of a seed speak HTTP."""
    return seed % BY_HTTP == 0


class HttpUsers:
    """The users of a seed who speak HTTP, or none."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(f"http {seed}")
        self.are_on = speaks_http(seed)
        if self.are_on:
            # Before the run: modules draw random bytes while they are imported, and in a run these
            # come from its dice. A process that has them already would run another story.
            import_module("quivermq.transports.http")

    def listen(self, host: str) -> dict[str, object]:
        """The settings of a server."""
        return {"http": f"{host}:{HTTP_PORT}"} if self.are_on else {}

    def draw_users(self) -> list[tuple[MakeUser, float]]:
        if not self.are_on:
            return []
        makers: list[MakeUser] = [HttpProducingUser] * self._dice.randint(1, 2)
        makers += [_consumer] * self._dice.randint(1, 2)
        return [(make, self._dice.random()) for make in makers]


def _consumer(stage: Stage, name: str, dice: Random) -> User:
    topic = dice.choice(list(stage.topics))
    return HttpConsumingUser(stage, f"http {name}", dice, topic, dice.choice(GROUPS))
