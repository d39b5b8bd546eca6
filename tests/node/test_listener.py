"""What others are told to connect to, and how a listener ends."""

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from quivermq.addresses import split_address
from quivermq.node.listener import close_listener, file_limits, reachable
from quivermq.wire import proto
from tests.transports.stage import Talker, on_loop, serving


@pytest.mark.parametrize("address", ["127.0.0.1:7600", "[::1]:7600", "broker.example:7600"])
def test_an_address_that_leads_somewhere_is_told_as_it_is(address: str) -> None:
    assert reachable(address, "advertise") == address


@pytest.mark.parametrize("everywhere", ["0.0.0.0:7600", "[::]:7600"])
def test_everywhere_is_no_place_to_connect_to(
    everywhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = split_address(reachable(everywhere, "advertise"))
    assert host not in {"0.0.0.0", "::"}
    assert port == 7600
    assert "set advertise" in caplog.text


@on_loop
async def test_clients_and_brokers_of_one_that_listens_everywhere_hear_of_a_place(
    tmp_path: Path,
) -> None:
    async with serving(
        tmp_path, listen="0.0.0.0:0", peer_listen="0.0.0.0:0", insecure=True
    ) as server:
        talker = await Talker.by_socket(server)
        answer = await talker.ask(proto.Request(id=5, map=proto.MapQuery()))
        (broker,) = answer.map.brokers
        for address in (broker.address, broker.peer_address):
            assert not address.startswith("0.0.0.0")
        talker.close()


def test_the_limit_of_files_is_raised_as_far_as_a_system_lets_it() -> None:
    without = resource.RLIM_INFINITY
    assert file_limits(1024, 524_288) == [524_288]
    assert file_limits(524_288, 524_288) == []
    assert file_limits(without, without) == []
    # macOS: 256, though it says that there is no limit, and "no limit" is refused.
    assert file_limits(256, without) == [without, 1 << 20, 1 << 16, 24_576, 10_240]
    assert file_limits(24_576, without) == [without, 1 << 20, 1 << 16]


@pytest.mark.parametrize("turns", range(6))
@on_loop
async def test_a_connection_that_is_accepted_while_the_listener_is_closed_is_not_forgotten(
    turns: int,
) -> None:
    """After two turns of the loop it is accepted, and has neither transport nor protocol."""
    loop = asyncio.get_running_loop()
    troubles: list[object] = []
    loop.set_exception_handler(lambda _, context: troubles.append(context))
    made: list[asyncio.BaseTransport] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    server = await loop.create_server(Protocol, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        for _ in range(turns):
            await asyncio.sleep(0)
        await close_listener(server)
        await asyncio.sleep(0.01)
        assert len(made) == (turns >= 2)
        assert not troubles
        for transport in made:
            transport.close()
