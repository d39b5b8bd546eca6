"""Connections on an event loop: shared, cancelled, lost, too slow."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quivermq.batches import encode_batch
from quivermq.client.asyncio_transport import AsyncioTransport
from quivermq.errors import ConnectionFailed, InvalidRequest, Timeout, UnsupportedFormat
from quivermq.wire import proto
from tests.client.stand_in import HANG, StandIn

try:
    import uvloop
except ImportError:  # pragma: no cover
    uvloop = None  # type: ignore[assignment]


def soon(seconds: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + seconds


@asynccontextmanager
async def opened() -> AsyncIterator[AsyncioTransport]:
    transport = AsyncioTransport(token=None, tls=None, client_name="test")
    try:
        yield transport
    finally:
        await transport.close()


async def asked(transport: AsyncioTransport, address: str, seconds: float = 10.0) -> str:
    connection = await transport.connection(address, soon())
    request = proto.Request(ping=proto.Ping())
    number = await connection.post(request, (), soon(seconds))
    return (await connection.take(number, soon(seconds))).response.WhichOneof("body") or ""


Case = Callable[[StandIn], Awaitable[None]]


async def all_share_one_connection(stand_in: StandIn) -> None:
    async with opened() as transport:
        answers = await asyncio.gather(*(asked(transport, stand_in.address) for _ in range(20)))
    assert answers == ["done"] * 20
    assert len(stand_in.hellos) == 1


async def a_silent_broker_times_out_and_the_others_go_on(stand_in: StandIn) -> None:
    stand_in.script("ping", HANG)
    async with opened() as transport:
        with pytest.raises(Timeout):
            await asked(transport, stand_in.address, seconds=0.05)
        assert await asked(transport, stand_in.address) == "done"
    assert stand_in.count("cancel") == 1
    assert len(stand_in.hellos) == 1


async def a_cancelled_call_is_cancelled_at_the_broker(stand_in: StandIn) -> None:
    stand_in.script("ping", HANG)
    async with opened() as transport:
        task = asyncio.create_task(asked(transport, stand_in.address))
        await asyncio.to_thread(stand_in.until, "ping")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await asked(transport, stand_in.address) == "done"
    assert stand_in.count("cancel") == 1


async def a_lost_connection_fails_all_and_is_replaced(stand_in: StandIn) -> None:
    stand_in.script("ping", HANG, HANG)
    async with opened() as transport:
        tasks = [asyncio.create_task(asked(transport, stand_in.address)) for _ in range(2)]
        await asyncio.to_thread(stand_in.until, "ping", 2)
        stand_in.drop_all()
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in failures] == [ConnectionFailed] * 2
        assert await asked(transport, stand_in.address) == "done"


async def who_gives_up_connecting_leaves_it_to_the_others(stand_in: StandIn) -> None:
    async with opened() as transport:
        first, second = [asyncio.create_task(asked(transport, stand_in.address)) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "done"
        assert first.cancelled()
    assert len(stand_in.hellos) == 1


async def who_waits_to_write_hears_that_the_connection_is_lost(stand_in: StandIn) -> None:
    async with opened() as transport:
        connection = await transport.connection(stand_in.address, soon())
        connection.pause_writing()
        posted = asyncio.create_task(connection.post(proto.Request(), (), soon(60.0)))
        await asyncio.sleep(0)
        stand_in.drop_all()
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await asyncio.wait_for(posted, 10.0)


async def large_batches_pass_whole(stand_in: StandIn) -> None:
    frame = encode_batch([bytes([n]) * 100_000 for n in range(50)])
    async with opened() as transport:
        connection = await transport.connection(stand_in.address, soon())
        numbers = [
            await connection.post(proto.Request(produce=proto.Produce(topic="t")), (frame,), soon())
            for _ in range(4)
        ]
        for number in numbers:
            await connection.take(number, soon())
    assert [bytes(each.body) for each in stand_in.log().frames] == [bytes(frame.body)] * 4


class Counting:
    """A transport of an event loop that counts its writes."""

    def __init__(self, transport: Any) -> None:
        self.writes = 0
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def requests_of_one_turn_leave_in_one_write(stand_in: StandIn) -> None:
    async with opened() as transport:
        connection = await transport.connection(stand_in.address, soon())
        counting: Any = Counting(connection._transport)
        connection._transport = counting
        answers = await asyncio.gather(*(asked(transport, stand_in.address) for _ in range(20)))
        assert answers == ["done"] * 20
        assert counting.writes == 1


async def each_request_has_its_own_deadline(stand_in: StandIn) -> None:
    stand_in.script("ping", HANG, HANG, HANG)
    async with opened() as transport:
        connection = await transport.connection(stand_in.address, soon())
        ends: dict[float, float] = {}
        began = asyncio.get_running_loop().time()

        async def wait(seconds: float) -> None:
            with pytest.raises(Timeout):
                await connection.ask(proto.Request(ping=proto.Ping()), (), began + seconds)
            ends[seconds] = asyncio.get_running_loop().time() - began

        # The last one first: an earlier deadline that comes later counts, too.
        await asyncio.gather(wait(0.3), wait(0.05), wait(0.15))
        assert list(ends) == [0.05, 0.15, 0.3]
        # A loop may be early by the grain of its clock.
        assert all(took > seconds - 0.01 for seconds, took in ends.items())


async def another_protocol_is_named(stand_in: StandIn) -> None:
    stand_in.protocol = 99
    async with opened() as transport:
        with pytest.raises(UnsupportedFormat, match="protocol 99"):
            await transport.connection(stand_in.address, soon())


async def a_closed_door_opens_no_more(stand_in: StandIn) -> None:
    async with opened() as transport:
        pass
    with pytest.raises(InvalidRequest, match="closed"):
        await transport.connection(stand_in.address, soon())


CASES = [
    all_share_one_connection,
    a_silent_broker_times_out_and_the_others_go_on,
    a_cancelled_call_is_cancelled_at_the_broker,
    a_lost_connection_fails_all_and_is_replaced,
    who_gives_up_connecting_leaves_it_to_the_others,
    who_waits_to_write_hears_that_the_connection_is_lost,
    large_batches_pass_whole,
    requests_of_one_turn_leave_in_one_write,
    each_request_has_its_own_deadline,
    another_protocol_is_named,
    a_closed_door_opens_no_more,
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_on_every_event_loop(case: Case, loop: str, stand_in: StandIn) -> None:
    async def run() -> None:
        await case(stand_in)

    if loop == "asyncio":
        asyncio.run(run())
    elif uvloop is not None:
        uvloop.run(run())
