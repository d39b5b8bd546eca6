"""A real broker on a thread of its own, for tests of the client."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import quivermq
from quivermq.settings import BrokerSettings
from quivermq.transports import Server


class BrokerThread:
    """Runs until it is stopped; `restart` brings it back at the same address."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._settings = {
            "data_dir": str(folder),
            "listen": "127.0.0.1:0",
            "peer_listen": "127.0.0.1:0",
            "http": "",
            "grpc": "",
            "fsync": "never",
            **settings,
        }
        self.address = ""
        self.start()

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(self._started())
        self.address = self._server.listen
        self._settings["listen"] = self.address
        with quivermq.connect(self.address) as client:
            while not any(node.alive for node in client.cluster().nodes):
                time.sleep(0.01)

    def stop(self) -> None:
        self._call(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _started(self) -> Server:
        server = Server(BrokerSettings(**self._settings))
        await server.start()
        return server

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)
