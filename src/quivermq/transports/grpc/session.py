"""One stream of requests and responses: produce, pushes within credit, settlements.

Everything is bounded: open requests and their bytes, subscriptions, credit, what waits to be
written, and how long a client may be silent or take nothing.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

import grpc.aio

import quivermq
from quivermq.errors import InvalidRequest, Overloaded, QuiverError, Timeout
from quivermq.node import end_tasks
from quivermq.transports.backlog import Backlog
from quivermq.transports.grpc.call import Call, own_call
from quivermq.transports.grpc.calls import Calls, Context
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.grpc.leases import consumer_number, settle_request
from quivermq.transports.grpc.parts import push_response
from quivermq.transports.grpc.polling import (
    PLAIN_MESSAGES_MAX,
    Polled,
    add_deliveries,
    arrow_deliveries,
    give_back,
    poll_of,
)
from quivermq.transports.grpc.requests import id_of, parse_session
from quivermq.wire import proto

CREDIT_MAX: Final = 100_000
"""Messages that may be pushed ahead to one subscription."""
SUBSCRIPTIONS_MAX: Final = 100
_NAME_CHARACTERS: Final = 200
_WAIT_S: Final = 10.0
"""How long one poll of a subscription waits."""
_AGAIN_S: Final = (0.05, 1.0)
"""After a failure that may pass, a subscription tries again: from so soon up to so late."""
_SETTLEMENTS: Final = ("ack", "nack", "extend", "reject", "release")


class Sessions:
    """Runs the sessions of all clients."""

    def __init__(self, calls: Calls, request_bytes_max: int) -> None:
        self._calls = calls
        self._request_bytes_max = request_bytes_max

    async def run(self, _: Any, context: Context) -> None:
        handler = partial(self._calls.until_closing, self._run)
        await self._calls.for_caller(handler, None, context)

    async def _run(self, _: Any, context: Context) -> None:
        session = Session(self._calls, context, self._request_bytes_max)
        try:
            await session.run()
        except Exception as error:
            refusal: Exception | None = error
        else:
            refusal = None
        finally:
            await session.close()
        if refusal is not None:
            await self._calls.refuse(context, refusal)


class Subscription:
    """Credit of one subscription, and the task that pushes."""

    def __init__(self, credit: int) -> None:
        self.credit = 0
        self._more = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.sending: asyncio.Task[None] | None = None
        """The last push, on its way."""
        self.add(credit)

    def add(self, messages: int) -> None:
        if self.credit + messages > CREDIT_MAX:
            raise InvalidRequest(
                f"credit of {self.credit + messages:,} messages is above the limit of "
                f"{CREDIT_MAX:,}: give it back as messages are settled"
            )
        self.credit += messages
        if self.credit:
            self._more.set()

    def take(self, messages: int) -> None:
        self.credit = max(0, self.credit - messages)
        if not self.credit:
            self._more.clear()

    async def wait(self) -> None:
        await self._more.wait()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self.task, self.sending) if task is not None]


class Session:
    """The requests of one stream, until it ends."""

    def __init__(self, calls: Calls, context: Context, request_bytes_max: int) -> None:
        self._calls = calls
        self._context = context
        self._request_bytes_max = request_bytes_max
        self._settings = calls.broker.settings
        self._backlog = Backlog(self._settings.unread_bytes_max, lambda: 0)
        self._hello = api.Hello()
        self._consumer = consumer_number("", "")
        self._open: dict[int, tuple[asyncio.Task[None], int]] = {}
        self._open_bytes = 0
        self._fewer = asyncio.Event()
        self._subscriptions: dict[int, Subscription] = {}
        self._delivered: set[tuple[str, int]] = set()
        self._places = 0
        self._writing = asyncio.Lock()
        self._failure: QuiverError | None = None
        self._main = asyncio.current_task()

    async def run(self) -> None:
        """Take requests until the client sends no more; raises what ends the stream."""
        try:
            await self._greet()
            while True:
                data = await self._read(self._settings.idle_timeout_ms)
                if data is None:
                    break
                await self._take(data)
                await self._wait_for_room()
            # The client has said all: what it asked is answered, and no more is pushed.
            await end_tasks(*self._pushing())
            while self._open:
                await asyncio.wait([task for task, _ in self._open.values()])
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise

    async def _read(self, timeout_ms: int) -> bytes | None:
        """The next request; None if there is none."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await self._context.read()
        except TimeoutError:
            raise Timeout(
                f"the client said nothing for {timeout_ms / 1000:.1f} s: send heartbeats"
            ) from None
        return None if found is grpc.aio.EOF else found

    async def _greet(self) -> None:
        data = await self._read(self._settings.hello_timeout_ms)
        request = parse_session(data or b"")
        if request.WhichOneof("body") != "hello":
            raise InvalidRequest("the first request of a session must be hello")
        self._hello = request.hello
        welcome = api.Welcome(
            node=self._calls.broker.node_id,
            cluster_id=self._calls.broker.cluster_id,
            version=quivermq.__version__,
            max_requests=self._settings.requests_max,
            max_credit=CREDIT_MAX,
            max_request_bytes=self._request_bytes_max,
            idle_timeout_ms=self._settings.idle_timeout_ms,
        )
        await self._send(api.Response(id=request.id, welcome=welcome))

    async def _take(self, data: bytes) -> None:
        number = id_of(data)
        self._calls.count_request()
        try:
            request = parse_session(data)
            number, body = request.id, request.WhichOneof("body")
            if not number or number in self._open or number in self._subscriptions:
                raise InvalidRequest(f"request id {number} is in use, or 0: choose another")
            if body == "produce":
                self._begin(request, self._produce(request))
                return
            if body in _SETTLEMENTS:
                self._begin(request, self._settle(request, getattr(request, body)))
                return
            if body == "unsubscribe":
                subscription = self._subscription(request.unsubscribe.subscription)
                self._begin(request, self._unsubscribe(request, subscription))
                return
            self._steer(request)
        except QuiverError as error:
            await self._refuse(number, error)
        else:
            await self._send(api.Response(id=number, done=api.Done()))
            if body == "subscribe":
                self._start_pushing(number, request.subscribe)

    def _steer(self, request: api.Request) -> None:
        """Requests that are done at once."""
        match request.WhichOneof("body"):
            case "heartbeat":
                return
            case "subscribe":
                self._subscribe(request)
            case "credit":
                self._subscription(request.credit.subscription).add(request.credit.messages)
            case "hello":
                raise InvalidRequest("hello was said before")
            case _:
                raise InvalidRequest("this release does not know the request: upgrade the broker")

    def _subscription(self, number: int) -> Subscription:
        found = self._subscriptions.get(number)
        if found is None:
            raise InvalidRequest(f"there is no subscription {number}")
        return found

    # Requests that take their time.

    def _begin(self, request: api.Request, work: Coroutine[Any, Any, None]) -> None:
        size = request.ByteSize()
        task = asyncio.create_task(work)
        self._open[request.id] = (task, size)
        self._open_bytes += size
        task.add_done_callback(lambda _: self._end(request.id))

    def _end(self, number: int) -> None:
        _, size = self._open.pop(number)
        self._open_bytes -= size
        self._fewer.set()

    async def _wait_for_room(self) -> None:
        """Read no more while too much is open."""
        settings = self._settings
        while (
            len(self._open) >= settings.requests_max
            or self._open_bytes > settings.request_bytes_max
        ):
            self._fewer.clear()
            await self._fewer.wait()

    def _call(self, number: int) -> Call:
        return Call(self._calls.broker, partial(self._backlog.room, number))

    async def _produce(self, request: api.Request) -> None:
        try:
            stored = await self._calls.producing.produce(self._call(request.id), request.produce)
        except Exception as error:
            await self._refuse(request.id, error)
        else:
            await self._send(api.Response(id=request.id, produced=stored))

    async def _settle(self, request: api.Request, body: Any) -> None:
        try:
            await settle_request(self._call(request.id), body, self._hello.group)
        except Exception as error:
            await self._refuse(request.id, error)
        else:
            await self._send(api.Response(id=request.id, done=api.Done()))

    # Pushing.

    def _subscribe(self, request: api.Request) -> None:
        if not self._hello.group:
            raise InvalidRequest("a session that named no group in its hello cannot subscribe")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Overloaded(f"a session may have {SUBSCRIPTIONS_MAX} subscriptions")
        self._poll(request.subscribe)
        self._subscriptions[request.id] = Subscription(request.subscribe.credit)

    async def _unsubscribe(self, request: api.Request, subscription: Subscription) -> None:
        """Lease no more; what is on its way arrives before the answer."""
        self._subscriptions.pop(request.unsubscribe.subscription, None)
        if subscription.task is not None:
            await end_tasks(subscription.task)
        if subscription.sending is not None:
            await asyncio.wait([subscription.sending])
        await self._send(api.Response(id=request.id, done=api.Done()))

    def _poll(self, wanted: api.Subscribe) -> proto.Poll:
        name = self._hello.consumer or self._hello.client
        return poll_of(
            api.PollRequest(
                topic=wanted.topic,
                group=self._hello.group,
                consumer=name[:_NAME_CHARACTERS],
                max_bytes=wanted.max_bytes,
                visibility_ms=wanted.visibility_ms,
                format=wanted.format,
                auto_ack=wanted.auto_ack,
                start=wanted.start,
            ),
            self._consumer,
        )

    def _start_pushing(self, number: int, wanted: api.Subscribe) -> None:
        subscription = self._subscriptions[number]
        subscription.task = asyncio.create_task(self._push(number, subscription, wanted))

    async def _push(self, number: int, subscription: Subscription, wanted: api.Subscribe) -> None:
        pause_s, longest_s = _AGAIN_S
        while True:
            try:
                await self._push_some(number, subscription, wanted)
                pause_s = _AGAIN_S[0]
            except Exception as error:
                if isinstance(error, QuiverError) and error.retriable:
                    # A leader changes: the client need not know.
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, longest_s)
                    continue
                self._subscriptions.pop(number, None)
                await self._refuse(number, error)
                return

    async def _push_some(
        self, number: int, subscription: Subscription, wanted: api.Subscribe
    ) -> None:
        """Lease what there is credit for, and let it leave while more is leased."""
        await subscription.wait()
        poll = self._poll(wanted)
        most = CREDIT_MAX if wanted.format == api.FORMAT_ARROW else PLAIN_MESSAGES_MAX
        poll.messages_max = min(subscription.credit, most)
        # Room of its own for each push: two of them may be under way.
        place = self._next_place()
        call = self._call(place)
        try:
            polled = await self._calls.polling.poll(call, poll, _WAIT_S)
        except BaseException:
            self._backlog.settle(place)
            raise
        if not polled.leased:
            self._backlog.settle(place)
            return
        subscription.take(sum(_messages_of(polled)))
        if not poll.auto_ack:
            self._delivered |= {(poll.topic, found.partition) for found, _ in polled.leased}
        before = subscription.sending
        work = self._deliver(number, place, poll, polled, wanted.format, before)
        subscription.sending = asyncio.create_task(work)
        if before is not None:
            await asyncio.wait([before])
            if not before.cancelled() and (error := before.exception()) is not None:
                raise error

    def _next_place(self) -> int:
        self._places -= 1
        return self._places

    async def _deliver(
        self,
        number: int,
        place: int,
        poll: proto.Poll,
        polled: Polled,
        wanted: int,
        before: asyncio.Task[None] | None,
    ) -> None:
        is_sent = False
        try:
            response: api.Response | bytes
            if wanted == api.FORMAT_ARROW:
                response = push_response(number, arrow_deliveries(poll, polled))
            else:
                response = api.Response(id=number)
                await add_deliveries(response.push, self._call(place), poll, polled)
            if before is not None:
                # Pushes leave in the order in which they were leased.
                await asyncio.wait([before])
            await self._send(response)
            is_sent = True
        finally:
            self._backlog.settle(place)
            if not is_sent:
                self._calls.spawn(give_back(own_call(self._calls.broker), poll, polled))

    # Writing.

    async def _refuse(self, number: int, error: Exception) -> None:
        await self._send(api.Response(id=number, error=self._calls.error_of(error)))

    async def _send(self, response: api.Response | bytes) -> None:
        """Write a response; a client that takes nothing for too long is given up."""
        timeout_s = self._settings.idle_timeout_ms / 1000
        async with self._writing:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._context.write(response)
            except TimeoutError:
                self._failure = Timeout(f"the client took no answer for {timeout_s:.1f} s")
                self._give_up()
            except Exception:  # gRPC's own: the stream is gone
                self._give_up()

    def _give_up(self) -> NoReturn:
        if self._main is not None:
            self._main.cancel()
        raise asyncio.CancelledError

    # The end.

    def _pushing(self) -> list[asyncio.Task[None]]:
        return [task for each in self._subscriptions.values() for task in each.tasks]

    async def close(self) -> None:
        """End everything, and give back what was pushed and not settled."""
        with suppress(asyncio.CancelledError):
            await end_tasks(*self._pushing(), *[task for task, _ in self._open.values()])
        if self._delivered:
            self._calls.spawn(self._release(sorted(self._delivered)))

    async def _release(self, places: Iterable[tuple[str, int]]) -> None:
        call = own_call(self._calls.broker)
        for topic, partition in places:
            release = proto.ReleaseConsumer(
                topic=topic,
                partitions=[partition],
                group=self._hello.group,
                consumer=self._consumer,
            )
            with suppress(QuiverError):  # of a partition without a leader the leases expire
                await call.ask(proto.Request(release_consumer=release))


def _messages_of(polled: Polled) -> Iterable[int]:
    return (piece.count for found, _ in polled.leased for piece in found.pieces)
