"""A gateway in the test's own process, in front of a broker that is there too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import quivermq

# Before a loop runs that importing them would hold.
import quivermq.transports.grpc
import quivermq.transports.http
from quivermq.settings import BrokerSettings
from quivermq.transports import GatewayServer, Server
from tests.transports.stage import serving, until

SECRET = "a secret of thirty-two characters"
WITH_USERS = {"users": True, "cluster_secret": SECRET}


def gateway_settings(join: str, **changes: Any) -> BrokerSettings:
    usual = {"gateway": True, "join": join, "listen": "127.0.0.1:0", "http": "", "grpc": ""}
    return BrokerSettings.model_validate({**usual, **changes})


@asynccontextmanager
async def gateway_of(join: str, **changes: Any) -> AsyncIterator[GatewayServer]:
    """A gateway that serves; whether brokers answer is the test's business."""
    gate = GatewayServer(gateway_settings(join, **changes))
    await gate.start()
    try:
        yield gate
    finally:
        await gate.stop()


@asynccontextmanager
async def gated(folder: Path, **changes: Any) -> AsyncIterator[tuple[Server, GatewayServer]]:
    """A broker, and a gateway that is ready; the settings are those of both."""
    async with (
        serving(folder, **changes) as server,
        gateway_of(server.listen, **changes) as gate,
    ):
        await until(lambda: gate.gateway.is_ready)
        yield server, gate


def connect(server: Server | GatewayServer, token: str | None = None, **options: Any) -> Any:
    return quivermq.aio.connect(server.listen, token=token, **{"timeout": 10.0, **options})
