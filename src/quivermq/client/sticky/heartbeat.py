"""Heartbeats of one member of a sticky group, sent to the coordinator."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from quivermq.client.connect_options import program_name
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.errors import NotLeader, QuiverError
from quivermq.wire import proto

if TYPE_CHECKING:
    from quivermq.client.sticky.member import ConsumerSettings

LEAVE_SECONDS: Final = 3.0
QUICK_SECONDS: Final = 0.05
"""A coordinator that answers faster than this without a change is asked more slowly."""


class Heartbeat:
    """Tells the coordinator that the member is alive, and which partitions it has released."""

    def __init__(self, router: Router, settings: "ConsumerSettings", member: int) -> None:
        self.generation = 0
        """The last that the member knows."""
        self._router = router
        self._settings = settings
        self._member = member
        self._released: set[int] = set()
        self._urgent = asyncio.Event()
        self._interval = 0.0
        self._coordinator = ""
        self._is_direct = True

    def release(self, partitions: Iterable[int], revoked: Iterable[int] | None = None) -> None:
        """Report with every heartbeat that these are released, for as long as they are revoked."""
        if revoked is not None:
            self._released.intersection_update(revoked)
        self._released.update(partitions)

    def send_now(self) -> None:
        """Do not wait for the answer of a heartbeat that the coordinator may hold: send another."""
        self._urgent.set()

    async def send(self) -> proto.StickyState:
        """Send one heartbeat, and return its answer, which comes when the assignment changes or the
        next heartbeat is due; raises what the cluster refuses."""
        is_urgent = self._urgent.is_set()
        self._urgent.clear()
        request = self._request()
        if is_urgent and not self._released:
            request.sticky_beat.generation = 0  # answered at once
        loop = asyncio.get_running_loop()
        began = loop.time()
        if is_urgent or self._released or not self.generation:
            return await self._ask(request)
        state = await self._ask_unless_urgent(request)
        if state is None:
            return await self.send()
        if state.generation == self.generation and loop.time() - began < QUICK_SECONDS:
            await asyncio.sleep(2 * QUICK_SECONDS)
        return state

    async def leave(self, *, is_brief: bool = False) -> None:
        """Send the last heartbeat; tried once, if it is to be brief."""
        request = self._request()
        request.sticky_beat.leaving = True
        seconds = min(LEAVE_SECONDS, self._router.timeout)
        attempts = Attempts(self._router.transport, seconds, "leaving a sticky group")
        if is_brief:
            request.direct = False  # the broker that is asked passes it on
            address = self._coordinator or self._router.map.servers(self._router.transport.now())[0]
            await self._router.exchange(address, request, (), attempts)
            return
        await self._ask(request, attempts)

    def _request(self) -> proto.Request:
        settings = self._settings
        body = proto.StickyBeat(
            topic=settings.topic,
            group=settings.group,
            member=self._member,
            member_name=settings.name or program_name(),
            assignor=settings.assignor,
            generation=self.generation,
            released=sorted(self._released),
            session_ms=round(settings.session * 1000),
        )
        return proto.Request(sticky_beat=body)

    async def _ask_unless_urgent(self, request: proto.Request) -> proto.StickyState | None:
        asking = asyncio.ensure_future(self._ask(request))
        urgent = asyncio.ensure_future(self._urgent.wait())
        try:
            await asyncio.wait({asking, urgent}, return_when=asyncio.FIRST_COMPLETED)
            return await asking if asking.done() else None
        finally:
            for task in (asking, urgent):
                task.cancel()
            await asyncio.gather(asking, urgent, return_exceptions=True)

    async def _ask(
        self, request: proto.Request, attempts: Attempts | None = None
    ) -> proto.StickyState:
        """The answer of the coordinator; a broker that can reach it passes on what this member
        cannot send to it."""
        router = self._router
        attempts = attempts or router.attempts(f"taking part in group {self._settings.group!r}")
        while True:
            address = self._coordinator or router.map.servers(router.transport.now())[0]
            request.direct = self._is_direct
            try:
                reply = await router.exchange(address, request, (), attempts, self._interval)
            except QuiverError as error:
                if not error.retriable:
                    raise
                attempts.record_failure(address, error)
                self._is_direct = isinstance(error, NotLeader)
                self._coordinator = error.leader_address if isinstance(error, NotLeader) else ""
                elsewhere = self._coordinator not in {"", address}
                if elsewhere and attempts.may_follow_hint():
                    continue
                router.map.ask_last(address)
                await attempts.pause()
            else:
                state = reply.response.sticky_state
                self._interval = state.beat_ms / 1000
                return state
