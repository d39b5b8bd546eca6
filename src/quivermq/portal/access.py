"""Sessions of browsers, each with the token of its user, and one client for each token.

A token stays in this process. The browser has a random name for it, in a cookie that scripts cannot
read. Where the cluster has no users, there is nothing to sign in with, and no session.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from quivermq import aio
from quivermq.aio import AsyncClient
from quivermq.client import ClusterInfo
from quivermq.errors import QuiverError, Unauthenticated
from quivermq.portal.server import PortalSettings

COOKIE: Final = "quiver_portal"
SESSIONS_MAX: Final = 1_000
CLIENTS_MAX: Final = 64
_IDLE_SECONDS: Final = 12 * 3600.0
_REFUSED_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 600.0
_VISIBLE_SECONDS: Final = 2.0
NOBODY: Final = ""
"""The token of who is not signed in."""


@dataclass(slots=True)
class BrowserSession:
    """One browser that signed in."""

    token: str
    used: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class VisibleTopics:
    """The topics that a user may see, as brokers told a moment ago."""

    names: tuple[str, ...]
    """In order."""
    known: frozenset[str]
    at: float

    @property
    def own_count(self) -> int:
        """How many there are, without those of brokers and tools."""
        return sum(not name.startswith("_") for name in self.names)


class Access:
    """The sessions and the clients of a portal; both are bounded, the least used go first."""

    def __init__(self, settings: PortalSettings) -> None:
        self._settings = settings
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()
        self._clients: OrderedDict[str, AsyncClient] = OrderedDict()
        self.sampling_token = NOBODY
        self._refused = -_REFUSED_SECONDS
        self._refusals: dict[str, float] = {}
        self._connecting: dict[str, asyncio.Task[AsyncClient]] = {}
        self._visible: OrderedDict[str, VisibleTopics] = OrderedDict()
        self._listing: dict[str, asyncio.Task[VisibleTopics]] = {}

    async def sign_in(self, token: str) -> str:
        """Check a token at the brokers; returns the name of the session."""
        if not token:
            raise Unauthenticated("give a token: quiver user add NAME makes one")
        client = await self.client(token)
        await client.cluster()
        name = secrets.token_urlsafe(32)
        self._sessions[name] = BrowserSession(token)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return name

    def sign_out(self, name: str) -> None:
        self._sessions.pop(name, None)

    def token_of(self, name: str) -> str:
        """The token of a session; `NOBODY` if it is unknown or too old."""
        session = self._sessions.get(name)
        if session is None:
            return NOBODY
        now = time.monotonic()
        if now - session.used > _IDLE_SECONDS:
            del self._sessions[name]
            return NOBODY
        session.used = now
        self._sessions.move_to_end(name)
        return session.token

    def end_sessions(self, token: str) -> None:
        """Forget a token that brokers do not accept any more."""
        for name in [name for name, each in self._sessions.items() if each.token == token]:
            del self._sessions[name]

    def is_admin(self, token: str) -> bool:
        """Whether it is worth asking what only admins may: refusals are recorded by brokers."""
        return time.monotonic() - self._refusals.get(token, -_AGAIN_SECONDS) >= _AGAIN_SECONDS

    def note_refusal(self, token: str) -> None:
        """A user may not ask what admins may; grants can change, so it is asked again later."""
        while len(self._refusals) >= SESSIONS_MAX:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[token] = time.monotonic()

    async def client(self, token: str) -> AsyncClient:
        """The client of a token; raises the error of its first connection."""
        if token == NOBODY and time.monotonic() - self._refused < _REFUSED_SECONDS:
            # Brokers record who comes without a token: each look at a page would be one.
            raise Unauthenticated("the brokers ask for a token: sign in")
        client = self._clients.get(token)
        if client is not None:
            self._clients.move_to_end(token)
            return client
        connecting = self._connecting.get(token)
        if connecting is None:
            connecting = asyncio.ensure_future(self._connect(token))
            self._connecting[token] = connecting
            connecting.add_done_callback(lambda _: self._connecting.pop(token, None))
        return await asyncio.shield(connecting)

    async def visible(self, token: str) -> VisibleTopics:
        """The topics of a token. All its pages share a list for as long as they show a sample: with
        ten thousand topics, one for each request would be most of what a portal does."""
        found = self._visible.get(token)
        if found is not None and time.monotonic() - found.at < _VISIBLE_SECONDS:
            return found
        listing = self._listing.get(token)
        if listing is None:
            listing = self._listing[token] = asyncio.ensure_future(self._list(token))
            listing.add_done_callback(lambda _: self._listing.pop(token, None))
        return await asyncio.shield(listing)

    async def _list(self, token: str) -> VisibleTopics:
        client = await self.client(token)
        asked = time.monotonic()
        names = await client.topic_names()
        found = VisibleTopics(tuple(sorted(names)), frozenset(names), asked)
        self._visible[token] = found
        self._visible.move_to_end(token)
        while len(self._visible) > CLIENTS_MAX:
            self._visible.popitem(last=False)
        return found

    def forget_visible(self) -> None:
        """Somebody created or deleted a topic here."""
        self._visible.clear()

    async def sampler(self) -> tuple[AsyncClient, ClusterInfo]:
        """The client that takes samples: with the portal's token, else with that of a user; and
        the cluster as it sees it."""
        tokens = [self._settings.token, *(each.token for each in reversed(self._sessions.values()))]
        refused: QuiverError = Unauthenticated("the brokers ask for a token: sign in")
        for token in dict.fromkeys(tokens):
            try:
                client = await self.client(token)
                cluster = await client.cluster()
            except Unauthenticated as error:
                refused = error
                continue
            self.sampling_token = token
            return client, cluster
        raise refused

    async def _connect(self, token: str) -> AsyncClient:
        options = self._settings
        try:
            client = await aio.connect(
                options.servers, token=token, tls=options.tls, timeout=options.timeout
            )
        except Unauthenticated:
            if token == NOBODY:
                self._refused = time.monotonic()
            raise
        self._clients[token] = client
        while len(self._clients) > CLIENTS_MAX:
            _, oldest = self._clients.popitem(last=False)
            await oldest.close()
        return client

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
