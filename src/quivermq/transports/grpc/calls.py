"""The calls of the service `Quiver`: each in its own time, with its errors as a status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from quivermq.errors import ConnectionFailed, QuiverError
from quivermq.log_context import choose_request_id, current_request_id, working_on
from quivermq.node import Host, end_tasks
from quivermq.transports.grpc import administration, letters
from quivermq.transports.grpc.arrivals import read_only_request
from quivermq.transports.grpc.call import (
    REQUEST_ID,
    Backlogs,
    Call,
    authorization_of,
    host_of,
    own_call,
    request_id_of,
)
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.grpc.leases import consumer_number, settle_request
from quivermq.transports.grpc.parts import with_parts
from quivermq.transports.grpc.polling import (
    Polled,
    Polling,
    add_deliveries,
    arrow_deliveries,
    give_back,
    poll_of,
)
from quivermq.transports.grpc.producing import Producing
from quivermq.transports.grpc.reading import fetch
from quivermq.transports.grpc.requests import parse_call
from quivermq.transports.grpc.statuses import public_error, short, status_of, trailers
from quivermq.transports.signing_in import signed_in
from quivermq.wire import error_to_proto, proto

logger = logging.getLogger("quivermq.grpc")

Context: TypeAlias = Any
"""A `grpc.aio.ServicerContext`: gRPC has no types."""
Handler = Callable[[Any, Context], Coroutine[Any, Any, Any]]
Method = Callable[[Call, Any], Awaitable[Any]]
T = TypeVar("T")

_KINDS: Final = {
    method.name: GetMessageClass(method.input_type)
    for method in api.DESCRIPTOR.services_by_name["Quiver"].methods
}
"""The requests of all calls."""
_DOOR: Final = "grpc"
_STOPPING: Final = "this broker is stopping; ask another"


class Calls:
    """Answers calls; what waits for messages ends when the broker stops."""

    def __init__(self, broker: Host) -> None:
        self.broker = broker
        self.producing = Producing()
        self.polling = Polling()
        self.backlogs = Backlogs(broker.settings.unread_bytes_max)
        self._waiting: dict[asyncio.Task[Any], None] = {}
        self._background: dict[asyncio.Task[None], None] = {}
        self._is_closing = False
        self._passed = broker.counters.doors[_DOOR]

    def methods(self) -> dict[str, Handler]:
        """By the name of the call."""
        simple: dict[str, Method] = {
            "CreateTopic": administration.create_topic,
            "AlterTopic": administration.alter_topic,
            "DeleteTopic": administration.delete_topic,
            "ListTopics": administration.list_topics,
            "Produce": self.producing.produce,
            "NewProducer": administration.new_producer,
            "Ack": _settling(api.AckResponse),
            "Nack": _settling(api.NackResponse),
            "Extend": _settling(api.ExtendResponse),
            "Reject": _settling(api.RejectResponse),
            "Release": _settling(api.ReleaseResponse),
            "Commit": administration.commit,
            "Committed": administration.committed,
            "Seek": administration.seek,
            "ListGroups": administration.list_groups,
            "DeleteGroup": administration.delete_group,
            "ListDeadLetters": letters.list_dead_letters,
            "Redrive": letters.redrive,
            "Purge": letters.purge,
            "ListDelayed": letters.list_delayed,
            "CancelDelayed": letters.cancel_delayed,
            "Cluster": administration.cluster,
        }
        handlers: dict[str, Handler] = {
            **{
                name: partial(self._answer, _KINDS[name], method) for name, method in simple.items()
            },
            "Fetch": partial(self.until_closing, partial(self._answer, _KINDS["Fetch"], fetch)),
            "Poll": partial(self.until_closing, self._poll),
        }
        return {
            name: partial(self.for_caller, partial(self._with_request, each))
            for name, each in handlers.items()
        }

    async def _with_request(self, handler: Handler, _: Any, context: Context) -> Any:
        """Read the request, once it is known who asks."""
        limit_s = self.broker.settings.request_timeout_ms / 1000
        return await handler(await read_only_request(context, limit_s), context)

    async def for_caller(self, handler: Handler, request: Any, context: Context) -> Any:
        """Run a handler for the user whose token came with the call."""
        metadata = context.invocation_metadata()
        authorization, peer = authorization_of(metadata), context.peer()
        request_id = choose_request_id(request_id_of(metadata))
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        self._passed.enter(peer)
        with working_on(request_id, peer):
            try:
                async with signed_in(self.broker.access, authorization, host_of(peer), _DOOR):
                    tracer = self.broker.tracer
                    if tracer is None:
                        return await handler(request, context)
                    with tracer.incoming(dict(metadata)):
                        return await handler(request, context)
            except QuiverError as error:
                refusal = error
            finally:
                self._passed.leave(peer)
            return await self.refuse(context, refusal)

    def _call(self, context: Context) -> Call:
        """A call with room of its own among the answers, until it is over."""
        room, leave = self.backlogs.enter(context.peer())
        # Called when the answer was taken, or the call is over without one.
        context.add_done_callback(lambda _: leave())
        return Call(self.broker, room, context.time_remaining)

    async def _answer(
        self, kind: type[Message], method: Method, data: bytes, context: Context
    ) -> Any:
        try:
            return await method(self._call(context), parse_call(kind, data))
        except Exception as error:
            refusal = error
        return await self.refuse(context, refusal)

    async def refuse(self, context: Context, error: Exception) -> None:
        """End a call with an error, and all that is known of it."""
        status = status_of(error) if isinstance(error, QuiverError) else grpc.StatusCode.INTERNAL
        told = short(self.error_of(error))
        ids = ((REQUEST_ID, current_request_id()),)
        logger.debug("a call is refused with %s: %s", told.code, told.message)
        await context.abort(status, told.message, (*ids, *trailers(told, status)))

    def error_of(self, error: Exception) -> api.Error:
        """An error in the words of the public API; one that is not meant for users is logged."""
        if not isinstance(error, QuiverError):
            logger.error("a gRPC request failed", exc_info=error)
            error = QuiverError(f"the broker failed at this request: {error!r}")
        refusal = self.broker.service.refusal(error).error
        self._passed.refused[refusal.code] += 1
        return public_error(refusal, getattr(error, "selections", ()))

    async def _poll(self, data: bytes, context: Context) -> Any:
        """A call that is cancelled holds nothing: what it has leased goes back."""
        try:
            call = self._call(context)
            request = parse_call(api.PollRequest, data)
            poll = poll_of(request, consumer_number(request.group, request.consumer))
            wait_s = call.wait_s(request.wait_ms)
            polled = await self.polling.poll(call, poll, wait_s, request.partitions)
        except Exception as error:
            refusal = error
        else:
            try:
                return await self._polled(call, request, poll, polled)
            except BaseException as error:
                # Without the deadline of this call, which may have passed, and though its user
                # may be gone.
                self.spawn(give_back(own_call(self.broker), poll, polled))
                if not isinstance(error, Exception):
                    raise
                refusal = error
        return await self.refuse(context, refusal)

    async def _polled(
        self, call: Call, request: api.PollRequest, poll: proto.Poll, polled: Polled
    ) -> api.PollResponse | bytes:
        response = api.PollResponse(throttled_ms=polled.throttled_ms)
        if request.format == api.FORMAT_ARROW:
            return b"".join(with_parts(response, "deliveries", arrow_deliveries(poll, polled)))
        await add_deliveries(response, call, poll, polled)
        return response

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that no client waits for."""
        task = asyncio.create_task(_quietly(work))
        self._background[task] = None
        task.add_done_callback(self._background.pop)

    def count_request(self) -> None:
        """One more came, within a stream."""
        self._passed.requests += 1

    async def until_closing(self, handler: Handler, request: Any, context: Context) -> Any:
        """Run a handler that may wait for long; it ends when the broker stops."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (for the type checker)
        self._waiting[task] = None
        try:
            if not self._is_closing:
                return await handler(request, context)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
        finally:
            del self._waiting[task]
        return await self.refuse(context, ConnectionFailed(_STOPPING))

    def close(self) -> None:
        """End what waits for messages; all else is about to be answered."""
        self._is_closing = True
        for task in list(self._waiting):
            task.cancel()

    async def closed(self) -> None:
        """Wait until nothing is left to do."""
        while self._background:
            done, _ = await asyncio.wait(list(self._background), timeout=1.0)
            if not done:
                await end_tasks(*self._background)


def _settling(response: type[T]) -> Method:
    async def settle(call: Call, request: Any) -> T:
        await settle_request(call, request)
        return response()

    return settle


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except QuiverError as error:
        # Then their leases expire.
        logger.debug("leases were not given back: %s", error_to_proto(error).message)
