"""Passes the requests of a gateway's clients on to brokers, and their answers back.

Who may ask what is decided here as at a broker, and again by the broker that answers: a request
names its user. A request that left the gateway and was not answered is given back to its client as
`ConnectionFailed` or `Timeout`, since it may have been carried out; only questions are asked again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from quivermq.batches import Frame
from quivermq.client import Target
from quivermq.errors import ConnectionFailed, NotLeader, Timeout
from quivermq.node.callers import Caller
from quivermq.node.counters import Counters
from quivermq.node.gateway.broker_pool import BrokerPool, Unsent
from quivermq.node.gateway.broker_routes import BrokerRoutes
from quivermq.node.handlers import fetch, open_poll
from quivermq.node.service import Answer, Reply, Room, Service
from quivermq.node.tasks import end_tasks
from quivermq.wire import ANSWER_BYTES_MAX, error_from_proto, proto

_AGAIN_S: Final = 0.05
_MARGIN_S: Final = 0.05
"""A broker that answers at the very end of its time is heard."""
_LIST_BYTES: Final = 1 << 20
_NAMED_BYTES: Final = 64 << 10
"""Expected of a list of everything of one topic, and of what was named."""

QUESTIONS: Final = frozenset(
    {
        "map", "describe_topics", "fetch", "find_offset", "list_offsets", "committed_offsets",
        "await_ready", "describe_groups", "list_delayed", "list_dead", "describe_sticky",
        "list_users",
    }
)  # fmt: skip
"""Requests that change nothing: they are asked again if a broker is lost."""


class GatewayService(Service):
    """A service whose every partition is led elsewhere."""

    def __init__(
        self,
        brokers: BrokerPool,
        routes: BrokerRoutes,
        counters: Counters,
        timeout_s: float,
        drain_s: float,
        waiting_bytes: int,
        stats: Callable[[], dict[str, float]],
    ) -> None:
        """`drain_s`: how long `close` lets requests be answered. `waiting_bytes`: of each answer
        that a client waits for, so that there is room for all that it may wait for at a time."""
        super().__init__(brokers, counters, timeout_s, lambda: False, _nothing_to_learn)
        self._brokers = brokers
        self._routes = routes
        self._drain_s = drain_s
        self._waiting_bytes = waiting_bytes
        self._stats = stats
        self._waiting: dict[asyncio.Task[object], None] = {}

    def _submit_produce(
        self,
        request: proto.Request,
        frames: list[Frame],
        reply: Reply,
        room: Room,
        caller: Caller | None,
    ) -> asyncio.Task[None]:
        return self._spawn(request, frames, reply, room, caller)

    async def _call(
        self, request: proto.Request, frames: Sequence[Frame], room: Room, caller: Caller | None
    ) -> Answer:
        if request.WhichOneof("body") == "stats":
            return proto.Response(stats_report=proto.StatsReport(values=self._stats())), ()
        self._counters.forwarded += 1
        passed = proto.Request()
        passed.CopyFrom(request)
        # The client follows leaders as far as this gateway; from here on that is our business.
        passed.direct = False
        if self._access is not None:
            self._access.pass_on(caller, passed)
        deadline = self._deadline(request)
        body = getattr(passed, passed.WhichOneof("body") or "")
        if getattr(body, "wait_ms", 0) or passed.WhichOneof("body") == "sticky_beat":
            return await self._wait(passed, frames, room, deadline)
        return await self._ask(passed, frames, room, deadline)

    def _deadline(self, request: proto.Request) -> float:
        wait_s = request.timeout_ms / 1000 or self._timeout_s
        return asyncio.get_running_loop().time() + wait_s

    async def _wait(
        self, request: proto.Request, frames: Sequence[Frame], room: Room, deadline: float
    ) -> Answer:
        """Messages that are there are asked for first, as many as are wanted. What waits then has
        room for less: a client may have very many such requests open and read none of them."""
        kind = request.WhichOneof("body")
        if kind in {"poll", "fetch"}:
            at_once = proto.Request()
            at_once.CopyFrom(request)
            (at_once.poll if kind == "poll" else at_once.fetch).wait_ms = 0
            answer = await self._ask(at_once, frames, room, deadline)
            if answer[1] or answer[0].WhichOneof("body") == "error":
                return answer
            body = request.poll if kind == "poll" else request.fetch
            body.bytes_max = min(body.bytes_max or self._waiting_bytes, self._waiting_bytes)
        if self._is_closed:
            raise ConnectionFailed("this gateway is stopping; ask another")
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (for the type checker)
        self._waiting[task] = None
        try:
            return await self._ask(request, frames, room, deadline)
        finally:
            del self._waiting[task]

    async def _ask(
        self, request: proto.Request, frames: Sequence[Frame], room: Room, deadline: float
    ) -> Answer:
        """The answer of the broker that leads, whoever that is by then."""
        await room(_bytes_of(request))
        while True:
            try:
                return await self._ask_once(request, frames, deadline)
            except NotLeader:
                if self._left_s(deadline) <= _AGAIN_S:
                    raise
            except Unsent as unsent:
                if self._left_s(deadline) <= _AGAIN_S:
                    raise unsent.error from unsent
            except (ConnectionFailed, Timeout):
                is_question = request.WhichOneof("body") in QUESTIONS
                if not is_question or self._left_s(deadline) <= _AGAIN_S:
                    raise
            await asyncio.sleep(_AGAIN_S)

    @staticmethod
    def _left_s(deadline: float) -> float:
        return deadline - asyncio.get_running_loop().time()

    async def _ask_once(
        self, request: proto.Request, frames: Sequence[Frame], deadline: float
    ) -> Answer:
        target = await self._routes.target(request, deadline)
        # A leader answers by itself, or says who leads; any other broker passes it on.
        request.forwarded = target.direct
        request.timeout_ms = max(1, int(self._left_s(deadline) * 1000))
        try:
            response, sent = await self._brokers.send(
                target.address, request, frames, deadline + _MARGIN_S
            )
        except Unsent as unsent:
            self._routes.learn(request, target, unsent.error)
            raise
        except (ConnectionFailed, Timeout) as error:
            self._routes.learn(request, target, error)
            raise
        self._routes.answered(target)
        match response.WhichOneof("body"):
            case "error":
                self._check(request, target, response)
            case "map":
                self._routes.take_over(response.map)
                _hide_brokers(response.map)
        return response, sent

    def _check(self, request: proto.Request, target: Target, response: proto.Response) -> None:
        """Raise what may be answered otherwise elsewhere."""
        error = error_from_proto(response.error)
        # Nobody is sent past the gateway.
        response.error.leader_address = ""
        if isinstance(error, NotLeader) and target.direct:
            self._routes.learn(request, target, error)
            raise error
        if isinstance(error, NotLeader | ConnectionFailed):
            # That broker stops, has left the cluster, or is cut off from the others.
            self._routes.learn(request, target, error)
            if request.WhichOneof("body") in QUESTIONS:
                raise error

    async def close(self) -> None:
        """Begin nothing more, end what waits for messages, and let all else be answered."""
        self._is_closed = True
        await end_tasks(*self._waiting)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._drain_s)
        await end_tasks(*self._tasks)


async def _nothing_to_learn() -> None:
    """A gateway has no catalog that could be behind."""


def _bytes_of(request: proto.Request) -> int:
    """How large an answer may become."""
    match request.WhichOneof("body"):
        case "poll":
            return open_poll.bytes_wanted(request.poll)
        case "fetch":
            return fetch.bytes_wanted(request.fetch)
        case "map":
            is_small = request.map.topics or request.map.brokers_only
            return _NAMED_BYTES if is_small else ANSWER_BYTES_MAX
        case "describe_topics":
            return _LIST_BYTES if request.describe_topics.topics else ANSWER_BYTES_MAX
        case "describe_groups" | "list_dead":
            return _LIST_BYTES
    return 0


def _hide_brokers(found: proto.ClusterMap) -> None:
    """Clients come back to the gateway that they know; people see where brokers are."""
    for broker in found.brokers:
        broker.hidden_address, broker.address = broker.address, ""
