"""Answers the requests of all transports: one request in, one answer out.

A request that another broker must answer is forwarded, unless the client follows leaders by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from quivermq.batches import Frame
from quivermq.errors import (
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    NotLeader,
    Overloaded,
    QuiverError,
    TopicNotFound,
    Unauthenticated,
)
from quivermq.log_context import Work, add_table
from quivermq.node.access_control import AccessControl
from quivermq.node.callers import BROKER, NOBODY, Allowance, Caller
from quivermq.node.counters import Counters
from quivermq.node.handlers.produce import Finished, ProduceHandler
from quivermq.node.permissions import AUDITED
from quivermq.node.tasks import end_tasks
from quivermq.wire import check_items, error_to_proto, proto

logger = logging.getLogger("quivermq.service")

Reply = Callable[[proto.Response, Sequence[Frame]], None]
Answer = tuple[proto.Response, Sequence[Frame]]
Handler = Callable[[proto.Request], Awaitable[proto.Response | Answer]]
StoreHandler = Callable[[proto.Request, Sequence[Frame]], Awaitable[proto.Response]]
"""Of a request that brings batches."""


Room = Callable[[int], Awaitable[None]]
"""Waits until the client can take an answer of so many bytes."""


class AnswerRoom(Protocol):
    """Room for the answer to one request: a `Room` that also tells how much there is."""

    def __call__(self, size: int, /) -> Awaitable[None]: ...

    def fits(self, size: int) -> bool:
        """Whether the client can take an answer of so many bytes at this moment."""

    def reserve(self, size: int) -> None:
        """Promise room that was found to fit in this turn of the event loop."""


class Cancellable(Protocol):
    """Work on a request, under way or waiting."""

    def cancel(self) -> object:
        """End it: there is no answer."""


GoOn = Callable[[Callable[[], Awaitable[Answer]]], Cancellable]
"""Answers a request with a task after all: with what that gives."""
Straight = Callable[[proto.Request, Finished, AnswerRoom, GoOn], Cancellable | bool]
"""Of a request that most often needs no task. False: it does, and nothing was done for it. True: it
is answered, or will be soon. Or what waits for something."""


class Bulky(NamedTuple):
    """How a request is answered whose answer may be large."""

    handle: Callable[[proto.Request, Room], Awaitable[Answer]]
    """Waits for room before it makes the answer."""
    bytes_of: Callable[[proto.Request], int]
    """How large the answer may become."""


_ASK_AGAIN_S: Final = 0.05
_COUNTED: Final = frozenset(kind.__name__ for kind in (Overloaded, Unauthenticated, Forbidden))


class Forwarder(Protocol):
    """Passes a request on to another broker."""

    async def forward(
        self, node: int, request: proto.Request, frames: Sequence[Frame], timeout_s: float
    ) -> Answer: ...

    def address_of(self, node: int) -> str: ...


def _size_of(message: proto.Request | proto.Response, frames: Sequence[Frame]) -> int:
    return message.ByteSize() + sum(map(len, frames))


def _allowance_of(caller: Caller | None) -> Allowance | None:
    return caller.account.allowance if caller is not None and caller.account is not None else None


def _charged(reply: Reply, allowance: Allowance) -> Reply:
    """Count the answer as well."""

    def count_and_reply(response: proto.Response, frames: Sequence[Frame]) -> None:
        allowance.charge(_size_of(response, frames), asyncio.get_running_loop().time())
        reply(response, frames)

    return count_and_reply


class _AnyRoom:
    """For a caller that has one request open, and waits for its answer."""

    async def __call__(self, size: int, /) -> None: ...

    def fits(self, size: int) -> bool:  # noqa: ARG002
        return True

    def reserve(self, size: int) -> None: ...


any_room: Final = _AnyRoom()


class Service:
    """The one thing that all transports call."""

    def __init__(
        self,
        forwarder: Forwarder,
        counters: Counters,
        timeout_s: float,
        has_left: Callable[[], bool],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._producing: ProduceHandler
        self._handlers: dict[str, Handler] = {}
        self._bulky: dict[str, Bulky] = {}
        self._storing: dict[str, StoreHandler] = {}
        self._straight: dict[str, Straight] = {}
        self._forwarder = forwarder
        self._counters = self.counters = counters
        self._timeout_s = timeout_s
        self._has_left = has_left
        self._catch_up = catch_up
        self._tasks: dict[asyncio.Task[None], tuple[proto.Request, Caller | None]] = {}
        add_table(self)
        self._is_closed = False
        self._last_refusal: proto.Response | None = None
        self._access: AccessControl | None = None
        """None: everybody may ask anything, and nothing is looked up."""
        self._audit: Callable[[Caller, proto.Request, str], None] = lambda *_: None

    def register(
        self,
        producing: ProduceHandler,
        handlers: dict[str, Handler],
        bulky: dict[str, Bulky],
        storing: dict[str, StoreHandler],
        straight: dict[str, Straight],
    ) -> None:
        """Before the first request: some handlers call this service themselves."""
        self._producing = producing
        self._handlers = handlers
        self._bulky = bulky
        self._storing = storing
        self._straight = straight

    def guard(
        self, access: AccessControl, audit: Callable[[Caller, proto.Request, str], None]
    ) -> None:
        """From here on requests are checked; `audit` is told of each that is answered, with the
        code of its refusal."""
        self._access = access
        self._audit = audit

    def submit(
        self,
        request: proto.Request,
        frames: list[Frame],
        reply: Reply,
        room: AnswerRoom = any_room,
        caller: Caller | None = None,
    ) -> Cancellable | None:
        """Answer a request: `reply` is called once, maybe at once.

        Returns what may be cancelled, if there is anything: then there is no reply.
        """
        self._counters.requests += 1
        if self._is_closed:
            response = self.refusal(ConnectionFailed("this broker is stopping; ask another"))
            response.id = request.id
            reply(response, ())
            return None
        access = self._access
        if access is not None and (allowance := _allowance_of(caller)) is not None:
            try:
                self._admit(allowance, request, frames)
            except Overloaded as error:
                response = self.refusal(error)
                response.id = request.id
                reply(response, ())
                return None
            reply = _charged(reply, allowance)
        kind = request.WhichOneof("body") or ""
        if kind == "produce" and (access is None or access.allows(caller, request)):
            return self._submit_produce(request, frames, reply, room, caller)
        try:
            check_items(request)
        except QuiverError as error:
            response = self.refusal(error)
            response.id = request.id
            reply(response, ())
            return None
        straight = self._straight.get(kind)
        if straight is not None and (access is None or access.allows(caller, request)):
            # Others have it passed on, if this broker turns out not to lead.
            is_final = request.direct or request.forwarded
            if is_final and not self._has_left():
                go_on = partial(self._go_on, request, reply, caller)
                begun = straight(request, self._finish(request, reply), room, go_on)
                if begun:
                    return None if begun is True else begun
        return self._spawn(request, frames, reply, room, caller)

    def _finish(self, request: proto.Request, reply: Reply) -> Finished:
        """The reply of a request that has no task."""

        def finished(result: proto.Response | QuiverError, frames: Sequence[Frame] = ()) -> None:
            if isinstance(result, QuiverError):
                result = self.refusal(result)
            result.id = request.id
            reply(result, frames)

        return finished

    def _submit_produce(
        self,
        request: proto.Request,
        frames: list[Frame],
        reply: Reply,
        room: Room,
        caller: Caller | None,
    ) -> Cancellable | None:
        finished = self._finish(request, reply)
        try:
            wait_s = request.timeout_ms / 1000 or self._timeout_s
            self._producing.produce(request.produce, frames, finished, wait_s)
        except TopicNotFound:
            return self._spawn(request, frames, reply, room, caller)
        except NotLeader as error:
            if not (request.direct or request.forwarded):
                return self._spawn(request, frames, reply, room, caller)
            finished(error)
        except QuiverError as error:
            finished(error)
        return None

    def _spawn(
        self,
        request: proto.Request,
        frames: list[Frame],
        reply: Reply,
        room: Room,
        caller: Caller | None,
    ) -> asyncio.Task[None]:
        async def work() -> Answer:
            await room(0)
            return await self._call_checked(request, frames, room, caller)

        return self._go_on(request, reply, caller, work)

    def _go_on(
        self,
        request: proto.Request,
        reply: Reply,
        caller: Caller | None,
        work: Callable[[], Awaitable[Answer]],
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._answer(request, reply, work))
        self._tasks[task] = request, caller
        task.add_done_callback(self._tasks.pop)
        return task

    def work_of(self, task: asyncio.Task[Any]) -> Work | None:
        """The request that a task answers, for the log."""
        found = self._tasks.get(task)
        if found is None:
            return None
        request, caller = found
        return Work(request.id, caller.connection if caller is not None else "")

    async def _answer(
        self, request: proto.Request, reply: Reply, work: Callable[[], Awaitable[Answer]]
    ) -> None:
        sent: Sequence[Frame] = ()
        try:
            response, sent = await work()
        except QuiverError as error:
            response = self.refusal(error)
        except Exception as error:
            logger.exception("a %s request failed", request.WhichOneof("body"))
            response = self.refusal(QuiverError(f"the broker failed at this request: {error!r}"))
        response.id = request.id
        reply(response, sent)

    async def call(
        self,
        request: proto.Request,
        frames: Sequence[Frame] = (),
        room: Room = any_room,
        caller: Caller | None = None,
    ) -> Answer:
        """The answer, from here or from the leader; raises refusals."""
        if self._access is None:
            return await self._call(request, frames, room, caller)
        allowance = _allowance_of(caller)
        if allowance is not None:
            self._admit(allowance, request, frames)
        answer = await self._call_checked(request, frames, room, caller)
        if allowance is not None:
            allowance.charge(_size_of(*answer), asyncio.get_running_loop().time())
        return answer

    def _admit(self, allowance: Allowance, request: proto.Request, frames: Sequence[Frame]) -> None:
        allowance.admit(_size_of(request, frames), asyncio.get_running_loop().time())

    async def _call_checked(
        self, request: proto.Request, frames: Sequence[Frame], room: Room, caller: Caller | None
    ) -> Answer:
        access = self._access
        if access is None:
            return await self._call(request, frames, room, caller)
        code, who = "Cancelled", caller or NOBODY
        is_change = request.WhichOneof("body") in AUDITED
        who.changing += is_change
        try:
            await access.check(caller, request)
            answer = await self._call(request, frames, room, caller)
            code = answer[0].error.code
            await access.hide(caller, request, answer[0])
        except QuiverError as error:
            code = error.code
            raise
        finally:
            who.changing -= is_change
            self._audit(who, request, code)
        return answer

    async def call_as_broker(self, request: proto.Request, frames: Sequence[Frame] = ()) -> Answer:
        """The answer to what this broker asks of its own accord."""
        return await self.call(request, frames, caller=BROKER)

    async def _call(
        self, request: proto.Request, frames: Sequence[Frame], room: Room, caller: Caller | None
    ) -> Answer:
        wait_s = request.timeout_ms / 1000 or self._timeout_s
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            try:
                return await self._call_up_to_date(request, frames, room)
            except NotLeader as error:
                left_s = deadline - asyncio.get_running_loop().time()
                if request.direct or request.forwarded or left_s <= _ASK_AGAIN_S:
                    raise
                if error.leader:
                    bulky = self._bulky.get(request.WhichOneof("body") or "")
                    if bulky is not None:
                        await room(bulky.bytes_of(request))
                    answer = await self._forward(error.leader, request, frames, left_s, caller)
                    if answer is not None:
                        return answer
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _call_up_to_date(
        self, request: proto.Request, frames: Sequence[Frame], room: Room
    ) -> Answer:
        """A broker that just started, or is behind, may not have heard of a topic: only one that
        knows all that the catalog says may deny that there is one."""
        try:
            return await self._call_here(request, frames, room)
        except TopicNotFound:
            await self._catch_up()
        return await self._call_here(request, frames, room)

    async def _forward(
        self,
        node: int,
        request: proto.Request,
        frames: Sequence[Frame],
        left_s: float,
        caller: Caller | None,
    ) -> Answer | None:
        """The answer of another broker; None if it turns out that it does not lead either."""
        self._counters.forwarded += 1
        forwarded = proto.Request()
        forwarded.CopyFrom(request)
        forwarded.forwarded = True
        if self._access is not None:
            self._access.pass_on(caller, forwarded)
        response, sent = await self._forwarder.forward(node, forwarded, frames, left_s)
        if response.WhichOneof("body") == "error" and response.error.code == "NotLeader":
            return None
        return response, sent

    async def _call_here(
        self, request: proto.Request, frames: Sequence[Frame], room: Room
    ) -> Answer:
        name = request.WhichOneof("body") or ""
        if self._has_left() and name != "stats":
            raise ConnectionFailed("this broker has left its cluster: ask another, and stop it")
        if name == "produce":
            return await self._produce_here(request, frames), ()
        bulky = self._bulky.get(name)
        if bulky is not None:
            return await bulky.handle(request, room)
        store = self._storing.get(name)
        if store is not None:
            return await store(request, frames), ()
        handler = self._handlers.get(name)
        if handler is None:
            raise InvalidRequest(f"this broker does not know the request {name!r}: upgrade it")
        found = await handler(request)
        return found if isinstance(found, tuple) else (found, ())

    async def _produce_here(
        self, request: proto.Request, frames: Sequence[Frame]
    ) -> proto.Response:
        future: asyncio.Future[proto.Response] = asyncio.get_running_loop().create_future()

        def finished(result: proto.Response | QuiverError, _: Sequence[Frame] = ()) -> None:
            if future.done():
                return
            if isinstance(result, QuiverError):
                future.set_exception(result)
            else:
                future.set_result(result)

        wait_s = request.timeout_ms / 1000 or self._timeout_s
        self._producing.produce(request.produce, frames, finished, wait_s)
        return await future

    def refusal(self, error: QuiverError) -> proto.Response:
        """An error as an answer, and counted."""
        self._count(error.code, 1)
        leader = error.leader if isinstance(error, NotLeader) else 0
        address = self._forwarder.address_of(leader) if leader else ""
        self._last_refusal = response = proto.Response(error=error_to_proto(error, address))
        return response

    def take_back(self, response: proto.Response) -> None:
        """This answer went to a transport's own logic, which tries again or tells its client: a
        refusal is counted then. One of another broker was counted there."""
        if response is self._last_refusal:
            self._count(response.error.code, -1)

    def _count(self, code: str, times: int) -> None:
        if code in _COUNTED:
            self._counters.refusals[code] += times
            self._counters.overloaded += times * (code == Overloaded.__name__)

    async def close(self) -> None:
        """End everything that waits, and begin nothing more."""
        self._is_closed = True
        self._producing.close()
        await end_tasks(*self._tasks)
