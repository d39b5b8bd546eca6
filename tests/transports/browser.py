"""HTTP as a client of it sees it: by the standard library, and byte by byte."""

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import Any

from quivermq.addresses import split_address
from quivermq.transports import GatewayServer, Server
from tests.transports.stage import PATIENCE_S


@dataclass(frozen=True)
class Page:
    """What came back."""

    status: int
    headers: Message
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def get(server: Server | GatewayServer, path: str, method: str = "GET") -> Page:
    """One request on a connection of its own."""
    return await asyncio.to_thread(_get, f"http://{server.http}{path}", method)


def _get(url: str, method: str) -> Page:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return Page(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as answer:
        with answer:
            return Page(answer.code, answer.headers, answer.read().decode())


class Wire:
    """A connection on which anything can be said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, server: Server) -> "Wire":
        return cls(*await asyncio.open_connection(*split_address(server.http)))

    def say(self, text: bytes) -> None:
        self.writer.write(text)

    async def answer(self) -> Page:
        """The next answer; the connection stays open."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = Message()
            for line in lines:
                name, _, value = line.partition(": ")
                headers[name] = value
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Page(int(first.split()[1]), headers, body.decode())

    async def is_ended(self) -> bool:
        """Waits until the broker closes; whether it said nothing more before."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return
