"""Settings of the portal, and the process that serves it."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from quivermq.addresses import join_address, split_address
from quivermq.errors import ConnectionFailed, InvalidRequest
from quivermq.tls import ClientTls

_STOP_SECONDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PortalSettings:
    """Where the portal listens, and which brokers it shows."""

    servers: str = "127.0.0.1:7600"
    listen: str = "127.0.0.1:8080"
    token: str = ""
    """Of the portal itself, which takes samples with it. People sign in with their own."""
    tls: ClientTls = None
    """Of the brokers, as `connect` takes it."""
    tls_cert: str = ""
    """Of the portal: with both files, pages come by HTTPS."""
    tls_key: str = ""
    insecure: bool = False
    """Other machines may reach it without TLS."""
    host_names: tuple[str, ...] = ()
    """Names, other than addresses and localhost, by which browsers may ask for it."""
    interval: float = 2.0
    """Seconds between two samples."""
    timeout: float = 5.0
    """Seconds for which one question to the brokers may take."""
    stop_on_eof: bool = False
    """Stop also when standard input ends, as it does with the process that started this one."""
    ready: Callable[[str], None] = field(default=lambda _: None)
    """Called with the portal's address once it listens."""

    @property
    def is_https(self) -> bool:
        return bool(self.tls_cert and self.tls_key)

    def check(self) -> None:
        """Raise `InvalidRequest` for a value out of bounds, or if tokens would cross a network in
        the clear."""
        if not 0.1 <= self.interval <= 60:
            raise InvalidRequest(f"interval must be 0.1 to 60 seconds: {self.interval!r}")
        host, _ = split_address(self.listen)
        if not (is_loopback(host) or self.is_https or self.insecure):
            raise InvalidRequest(
                f"{self.listen} can be reached by other machines, and tokens would travel in the "
                "clear: give --tls-cert and --tls-key, or --insecure"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(settings: PortalSettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    settings.check()
    # Pages say that brokers are away; a line for each attempt would fill the terminal.
    logging.getLogger("quivermq.client").setLevel(logging.ERROR)
    asyncio.run(_serve(settings))


async def _serve(settings: PortalSettings) -> None:
    # Not at the top: who only reads the settings needs no server.
    import uvicorn  # noqa: PLC0415

    from quivermq.portal.app import create_app  # noqa: PLC0415

    class Server(uvicorn.Server):
        """Without its own signal handlers, which would raise the signal again at the end."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        def stop(self) -> None:
            self.should_exit = True

    config = uvicorn.Config(
        create_app(settings),
        http="h11",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    config.load()
    listener = _listen(settings.listen)
    server = Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    if settings.stop_on_eof:
        loop.add_reader(sys.stdin.fileno(), _read_input, server.stop)
    # Who connects from here on waits for a moment, and is served.
    address = join_address(split_address(settings.listen)[0], listener.getsockname()[1])
    settings.ready(f"{'https' if settings.is_https else 'http'}://{address}")
    await server.serve([listener])


def _read_input(stop: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop()


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConnectionFailed(f"cannot listen at {address}: {error.strerror}") from error
    return listener
