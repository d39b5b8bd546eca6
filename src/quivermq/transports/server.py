"""A broker with its doors: what `quiver serve` runs."""

import logging

from quivermq.node.broker import Broker
from quivermq.settings import BrokerSettings
from quivermq.transports.session import SessionSettings
from quivermq.transports.tcp import TcpDoor

logger = logging.getLogger("quivermq.server")


class Server:
    """Start it, use `listen`, `peer_listen` and `http`, stop it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.broker = Broker(settings)
        self.listen = ""
        self.peer_listen = ""
        self.http = ""
        self._tcp: TcpDoor | None = None

    async def start(self) -> None:
        """Serve. Raises `QuiverError` if it cannot: the directory, an address."""
        settings, broker = self.settings, self.broker
        await broker.start()
        try:
            self.peer_listen = broker.addresses.peer
            self._tcp = TcpDoor(
                broker.service,
                SessionSettings(
                    node_id=settings.node_id,
                    limits=broker.limits,
                    requests_max=settings.requests_max,
                    request_bytes_max=settings.request_bytes_max,
                    idle_timeout_s=settings.idle_timeout_ms / 1000,
                    hello_timeout_s=settings.hello_timeout_ms / 1000,
                ),
                broker.figures,
                settings.connections_max,
                lambda: broker.admission.cluster_id,
            )
            self.listen = await self._tcp.listen(settings.listen)
            await broker.take_part(self.listen, self.http)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Hand over, flush, close."""
        await self.broker.stop()
        if self._tcp is not None:
            await self._tcp.close()
