"""Polling: leases messages from the leaders of a topic's partitions.

One leader: one long poll, which the broker holds until there are messages. Several: each is polled
in turn without waiting; if none has messages, all are asked at once to answer when they have some,
and the first that answers is polled. An answer that is lost costs nothing: its leases expire.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any, Final, NamedTuple

from quivermq.batches import Frame
from quivermq.client.ask_leaders import recover_partitions
from quivermq.client.cluster_map import Route
from quivermq.client.retry import ATTEMPT_SECONDS_MIN, Attempts
from quivermq.client.router import LeaderPartitions, Posted, Router
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import Lease, Settlement
from quivermq.client.shared.lone_poller import LonePoller
from quivermq.client.topic_choice import TopicChoice
from quivermq.client.transport import Reply
from quivermq.errors import ConnectionFailed, QuiverError, Timeout
from quivermq.wire import frames_of, proto

POLL_BYTES: Final = 8 << 20
"""The most that one poll asks for."""

WAIT_SECONDS: Final = 10.0
"""How long a broker holds one request; a longer wait takes several."""

_BEGUN_MAX: Final = 10_000
# A partition that was added to a topic is not polled for at most so long.
ROUTE_SECONDS_MAX: Final = 3.0
# With a partition that has no leader, the others are not waited for longer than this at a time.
_PARTIAL_WAIT_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.05


class LeasedPiece(NamedTuple):
    """Messages in a row that were delivered equally often."""

    start: int
    end: int
    delivery: int


class LeasedRun(NamedTuple):
    """Messages that a poll brought from one partition."""

    lease: Lease
    pieces: list[LeasedPiece]
    frames: list[Frame]


class PollRequest(NamedTuple):
    """The parameters of a poll, checked."""

    topic: str
    """Of several: all of them, as text."""
    group: str
    consumer: int
    consumer_name: str
    messages_max: int
    wait_s: float
    visibility_ms: int
    auto_ack: bool
    start_latest: bool
    settle: Callable[[Sequence[Settlement]], Any]
    """Goes into every lease."""
    choice: TopicChoice | None = None
    """Several topics, or a pattern; None: the one topic."""

    @property
    def names_topic(self) -> bool:
        """The user named the topic: it may be created. One that a pattern matched, and that was
        deleted, may not."""
        return self.choice is None or self.choice.pattern is None


class PollResult(NamedTuple):
    """The answer of one broker."""

    leased_runs: list[LeasedRun]
    throttled_s: float = 0.0
    is_led: bool = True
    """False: not all that it was asked for is led there."""


NOTHING: Final = PollResult([])


class Poller:
    """The part of a client that leases messages."""

    def __init__(
        self,
        router: Router,
        held_leases: HeldLeases,
        begun: set[tuple[str, str]] | None = None,
    ) -> None:
        self._router = router
        self._held_leases = held_leases
        self._turns = count()
        # Topics and groups of which all leaders were asked.
        self._begun: set[tuple[str, str]] = set() if begun is None else begun
        # One that traces has more to send along.
        is_plain = router.is_blocking and router.tracer is None
        self._lone = LonePoller(router, self) if is_plain else None

    async def poll(self, request: PollRequest, attempts: Attempts | None = None) -> list[LeasedRun]:
        """Lease messages as soon as there are any; none if none came for as long as it waits."""
        end = self._router.transport.now() + request.wait_s
        turn = next(self._turns)
        has_begun = (request.topic, request.group) in self._begun
        straight = self._lone.poll(request, end, turn) if self._lone and has_begun else None
        if isinstance(straight, list):
            return straight
        attempts = attempts or self._attempts(request)
        if straight is not None:
            await recover_partitions(self._router, request.topic, *straight, attempts)
        return await self._poll_in_rounds(request, end, turn, attempts)

    async def _poll_in_rounds(
        self, request: PollRequest, end: float, turn: int, attempts: Attempts
    ) -> list[LeasedRun]:
        transport = self._router.transport
        while True:
            found = await self.by_leader(request.topic, attempts, may_create=request.names_topic)
            leaders = rotate_leaders(found, turn)
            if (request.topic, request.group) not in self._begun:
                await self._begin(request, leaders, attempts)
            round_ = _Round(self, request, end, attempts)
            result = await round_.work(leaders)
            if result.leased_runs:
                return result.leased_runs
            left = end - transport.now()
            if round_.has_answer:
                if left <= 0:
                    return []
                if result.throttled_s:
                    await transport.sleep(min(result.throttled_s, left))
                # Some broker works: patience with the others begins anew.
                attempts = self._attempts(request)
                if round_.is_partial or round_.failures:
                    await self._refresh_route(request.topic)
            elif round_.failures:
                await recover_partitions(self._router, request.topic, *round_.failures[0], attempts)

    async def _begin(
        self, request: PollRequest, leaders: Sequence[LeaderPartitions], attempts: Attempts
    ) -> None:
        """Create the group in every partition at once, whichever leader is polled first: it gets
        all messages from here on everywhere."""
        has_begun = True
        for led in leaders if len(leaders) > 1 else ():
            envelope = ready_request(request, led, 0.0)
            try:
                await self._router.exchange(led.target.address, envelope, (), attempts)
            except QuiverError:
                has_begun = False  # polling raises why, and the next poll asks again
        if has_begun and len(self._begun) < _BEGUN_MAX:
            self._begun.add((request.topic, request.group))

    async def by_leader(
        self, topic: str, attempts: Attempts, *, may_create: bool = True
    ) -> list[LeaderPartitions]:
        """The leaders to poll. Brokers do not announce partitions that are added, so the map is
        refreshed now and then; and when a broker answers that it does not lead a partition."""
        route = self._router.map.route(topic)
        now = self._router.transport.now()
        if route is None and may_create:
            await self._router.consumed_route(topic, attempts)
        elif route is not None and self.is_old(route):
            route.heard_at = now
            await self._refresh_route(topic)
        return await self._router.by_leader(topic, attempts)

    def is_old(self, route: Route) -> bool:
        """Partitions may have been added since it was heard."""
        return self._router.transport.now() - route.heard_at > ROUTE_SECONDS_MAX

    def wait_seconds(self, left: float) -> float:
        """How long a broker is asked to wait, with so much time left."""
        return max(0.0, min(WAIT_SECONDS, left))

    def envelope(self, request: PollRequest, led: LeaderPartitions, wait: float) -> proto.Request:
        """The request to one broker."""
        envelope = proto.Request(direct=led.target.direct)
        poll = envelope.poll
        poll.topic, poll.topic_id, poll.group = request.topic, led.target.topic_id, request.group
        poll.partitions.extend(led.partitions)
        poll.consumer, poll.consumer_name = request.consumer, request.consumer_name
        poll.messages_max, poll.bytes_max = request.messages_max, POLL_BYTES
        poll.wait_ms, poll.visibility_ms = int(wait * 1000), request.visibility_ms
        poll.auto_ack, poll.start_latest = request.auto_ack, request.start_latest
        return envelope

    async def poll_leader(
        self, request: PollRequest, led: LeaderPartitions, wait: float, attempts: Attempts
    ) -> PollResult:
        """One attempt at one broker."""
        envelope = self.envelope(request, led, wait)
        is_certain = False
        try:
            reply = await self._router.exchange(led.target.address, envelope, (), attempts, wait)
            is_certain = True
            return self.result_of(request, led, reply)
        except QuiverError as error:
            is_certain = not isinstance(error, ConnectionFailed | Timeout)
            raise
        finally:
            if not is_certain:
                # Also if the caller was cancelled: something may be leased all the same.
                self.record_uncertain(request, led)

    def record_uncertain(self, request: PollRequest, led: LeaderPartitions) -> None:
        """There was no answer: something may be leased."""
        if request.auto_ack:
            return
        until = self._router.transport.now() + request.visibility_ms / 1000
        for partition in led.partitions:
            source = LeaseSource(request.topic, request.group, partition)
            self._held_leases.add_uncertain(source, until)

    async def await_ready(
        self,
        request: PollRequest,
        leaders: Sequence[LeaderPartitions],
        wait: float,
        attempts: Attempts,
    ) -> list[LeaderPartitions]:
        """Ask all of them to answer when they have messages; return those that do, or fail."""
        router = self._router
        posted: list[tuple[LeaderPartitions, Posted]] = []
        try:
            for led in leaders:
                envelope = ready_request(request, led, wait)
                with suppress(QuiverError):  # a broker's failure shows when it is polled
                    found = await router.post(led.target.address, envelope, attempts, wait)
                    posted.append((led, found))
            if not posted:
                return list(leaders)
            asked = [(each.connection, each.request_id) for _, each in posted]
            await router.transport.first_answered(asked, min(each.deadline for _, each in posted))
            ready: list[LeaderPartitions] = []
            for led, each in list(posted):
                if each.connection.is_answered(each.request_id):
                    posted.remove((led, each))
                    ready += await self._partitions_ready(request.topic, led, each)
            return ready
        finally:
            for _, each in posted:
                router.drop(each)

    async def _partitions_ready(
        self, topic: str, led: LeaderPartitions, posted: Posted
    ) -> list[LeaderPartitions]:
        try:
            ready = (await self._router.take(posted)).response.ready
        except QuiverError:
            return [led]  # polling it raises why
        if ready.elsewhere:
            self._router.map.doubt(topic)
        partitions = set(ready.partitions)
        found = [each for each in led.partitions if each in partitions]
        return [led._replace(partitions=found)] if found else []

    def result_of(self, request: PollRequest, led: LeaderPartitions, reply: Reply) -> PollResult:
        """The messages of an answer; their leases are held from here on."""
        polled, tracer = reply.response.polled, self._router.tracer
        # Of the broker's span, or else of this poll's own.
        trace = "" if tracer is None else polled.traceparent or tracer.current()
        frames = iter(frames_of(reply.packet, self._router.limits))
        leased_runs = []
        for leased in polled.leased:
            lease = Lease(
                request.topic,
                led.target.topic_id,
                request.group,
                leased.partition,
                leased.lease,
                request.settle,
                trace,
                [(known.start, known.start + known.count, known.reason) for known in leased.reasons]
                if leased.reasons
                else (),
            )
            pieces = [
                LeasedPiece(piece.start, piece.start + piece.count, piece.delivery)
                for piece in leased.pieces
            ]
            leased_run = LeasedRun(lease, pieces, list(islice(frames, leased.frames)))
            leased_runs.append(leased_run)
            if lease.token:
                self._record(request, leased_run)
        if polled.elsewhere:
            self._router.map.doubt(request.topic)
        return PollResult(leased_runs, polled.throttled_ms / 1000, is_led=not polled.elsewhere)

    def _record(self, request: PollRequest, leased_run: LeasedRun) -> None:
        now = self._router.transport.now()
        until = now + request.visibility_ms / 1000
        source = LeaseSource(request.topic, request.group, leased_run.lease.partition)
        spans = ((piece.start, piece.end) for piece in leased_run.pieces)
        self._held_leases.add(source, leased_run.lease.token, spans, until, now)

    async def _refresh_route(self, topic: str) -> None:
        """Ask which brokers lead; a cluster that does not answer is no reason to stop."""
        try:
            await self._router.refresh(
                topic, Attempts(self._router.transport, 1.0, "asking who leads")
            )
        except QuiverError as error:
            if not error.retriable:
                raise

    def short_attempts(self, request: PollRequest) -> Attempts:
        """For those who must not keep the others waiting."""
        return Attempts(self._router.transport, ATTEMPT_SECONDS_MIN, f"polling {request.topic}")

    def _attempts(self, request: PollRequest) -> Attempts:
        return self._router.attempts(f"polling {request.topic} for group {request.group!r}")


class _Round:
    """One round of a poll: every leader is asked once."""

    def __init__(
        self, polling: Poller, request: PollRequest, end: float, attempts: Attempts
    ) -> None:
        self._polling = polling
        self._request = request
        self._end = end
        self._attempts = attempts
        self._now = polling._router.transport.now  # noqa: SLF001  (two halves of one module)
        self.has_answer = False
        self.is_partial = False
        """Some leader could not be asked."""
        self.failures: list[tuple[LeaderPartitions, QuiverError]] = []

    async def work(self, leaders: list[LeaderPartitions]) -> PollResult:
        """The result of the first leader that has messages."""
        if len(leaders) == 1:
            return await self._ask(leaders[0], self._left())
        near = [led for led in leaders if led.target.direct]
        # Brokers in between look for a leader for as long as they may: these are not waited for.
        far = [led for led in leaders if not led.target.direct]
        result = await self._first_of(near or far)
        if result.leased_runs or result.throttled_s or not self.has_answer:
            return result
        failed = [led for led, _ in self.failures]
        well = [led for led in near if led not in failed]
        if self._left() or far:
            self.is_partial = bool(failed or far)
            wait = max(_LOOK_SECONDS, self._left())
            wait = min(wait, _PARTIAL_WAIT_SECONDS) if self.is_partial else wait
            ready = await self._polling.await_ready(self._request, well + far, wait, self._attempts)
            result = await self._first_of(ready)
        return result

    async def _first_of(self, leaders: Sequence[LeaderPartitions]) -> PollResult:
        result = NOTHING
        for led in leaders:
            result = await self._ask(led, 0.0)
            if result.leased_runs or result.throttled_s:
                break
        return result

    async def _ask(self, led: LeaderPartitions, wait: float) -> PollResult:
        attempts = self._attempts
        if self.has_answer and not led.target.direct:
            attempts = self._polling.short_attempts(self._request)
        try:
            result = await self._polling.poll_leader(self._request, led, wait, attempts)
        except QuiverError as error:
            self.failures.append((led, error))
            # A topic that is not there may have been created again: a fresh map shows.
            if not error.retriable and error.code != "TopicNotFound":
                raise
            return NOTHING
        self.has_answer = True
        return result

    def _left(self) -> float:
        return self._polling.wait_seconds(self._end - self._now())


def rotate_leaders(leaders: Sequence[LeaderPartitions], turn: int) -> list[LeaderPartitions]:
    """Rotated, so that each time another leader and another partition come first."""
    if len(leaders) == 1 and len(leaders[0].partitions) == 1:
        return list(leaders)
    first = turn % len(leaders)
    return [
        led._replace(partitions=_rotate(led.partitions, turn // len(leaders)))
        for led in [*leaders[first:], *leaders[:first]]
    ]


def _rotate(partitions: list[int], turn: int) -> list[int]:
    first = turn % len(partitions)
    return partitions[first:] + partitions[:first]


def ready_request(request: PollRequest, led: LeaderPartitions, wait: float) -> proto.Request:
    """Asks a leader to answer when it has messages."""
    envelope = proto.Request(direct=led.target.direct)
    ask = envelope.await_ready
    ask.topic, ask.topic_id, ask.group = request.topic, led.target.topic_id, request.group
    ask.partitions.extend(led.partitions)
    ask.consumer, ask.consumer_name = request.consumer, request.consumer_name
    ask.wait_ms, ask.start_latest = int(wait * 1000), request.start_latest
    return envelope
