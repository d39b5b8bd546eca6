"""Polling: leasing messages from whoever leads the partitions of a topic, over either door.

One leader: one long poll, held by the broker until there is something. Several: each is asked in
turn for what is there; if nobody has anything, all are asked at once to tell when they do, and the
first that tells is polled. An answer that is lost costs nothing: its leases expire.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any, Final, NamedTuple

from quivermq.batches import Frame
from quivermq.client.ask_leaders import recover_partitions
from quivermq.client.retry import ATTEMPT_SECONDS_MIN, Attempts
from quivermq.client.router import LeaderPartitions, Posted, Router
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import Lease, Settlement
from quivermq.client.transport import Reply
from quivermq.errors import ConnectionFailed, QuiverError, Timeout
from quivermq.wire import frames_of, proto

POLL_BYTES: Final = 8 << 20
"""What one poll asks for at most."""

WAIT_SECONDS: Final = 10.0
"""How long a broker holds one request; a longer wait takes several."""

_BEGUN_MAX: Final = 10_000
# A partition that was added to a topic is not polled for at most so long.
ROUTE_SECONDS_MAX: Final = 3.0
# With a partition that nobody leads, the others are not waited for longer than this at a time.
_LAME_WAIT_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.05


class LeasedPiece(NamedTuple):
    """Messages in a row that were delivered equally often."""

    start: int
    end: int
    delivery: int


class LeasedRun(NamedTuple):
    """What a poll brought from one partition."""

    lease: Lease
    pieces: list[LeasedPiece]
    frames: list[Frame]


class PollRequest(NamedTuple):
    """What to poll."""

    topic: str
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


class PollResult(NamedTuple):
    """What one broker answered."""

    leased_runs: list[LeasedRun]
    throttled_s: float = 0.0
    is_led: bool = True
    """False: not all that it was asked for is led there."""


NOTHING: Final = PollResult([])


class Poller:
    """The part of a client that leases messages."""

    def __init__(self, router: Router, held_leases: HeldLeases) -> None:
        self._router = router
        self._held_leases = held_leases
        self._turns = count()
        # Topics and groups of which all leaders were asked.
        self._begun: set[tuple[str, str]] = set()

    async def poll(self, request: PollRequest) -> list[LeasedRun]:
        """Lease messages as soon as there are any; none if none came for as long as it waits."""
        transport = self._router.transport
        end = transport.now() + request.wait_s
        turn = next(self._turns)
        attempts = self._attempts(request)
        while True:
            shares = turned(await self.shares(request.topic, attempts), turn)
            if (request.topic, request.group) not in self._begun:
                await self._begin(request, shares, attempts)
            round_ = _Round(self, request, end, attempts)
            result = await round_.work(shares)
            if result.leased_runs:
                return result.leased_runs
            left = end - transport.now()
            if round_.has_answer:
                if left <= 0:
                    return []
                if result.throttled_s:
                    await transport.sleep(min(result.throttled_s, left))
                # Somebody works: patience with the others begins anew.
                attempts = self._attempts(request)
                if round_.is_lame or round_.failures:
                    await self._look_around(request.topic)
            elif round_.failures:
                await recover_partitions(self._router, request.topic, *round_.failures[0], attempts)

    async def _begin(
        self, request: PollRequest, shares: Sequence[LeaderPartitions], attempts: Attempts
    ) -> None:
        """Let the group begin in every partition at once, whoever is polled first: what comes from
        here on is its own everywhere."""
        has_begun = True
        for share in shares if len(shares) > 1 else ():
            envelope = _await_request(request, share, 0.0)
            try:
                await self._router.exchange(share.target.address, envelope, (), attempts)
            except QuiverError:
                has_begun = False  # polling tells why, and the next poll asks again
        if has_begun and len(self._begun) < _BEGUN_MAX:
            self._begun.add((request.topic, request.group))

    async def shares(self, topic: str, attempts: Attempts) -> list[LeaderPartitions]:
        """Whom to poll. Nobody tells of partitions that are added, so they are asked for now and
        then; a broker that was asked for what it does not lead says so, and the map is in doubt."""
        route = self._router.map.route(topic)
        now = self._router.transport.now()
        if route is not None and now - route.heard_at > ROUTE_SECONDS_MAX:
            route.heard_at = now
            await self._look_around(topic)
        return await self._router.shares(topic, attempts)

    async def poll_share(
        self, request: PollRequest, share: LeaderPartitions, wait: float, attempts: Attempts
    ) -> PollResult:
        """One attempt at one broker."""
        router = self._router
        envelope = proto.Request(direct=share.target.direct)
        poll = envelope.poll
        poll.topic, poll.topic_id, poll.group = request.topic, share.target.topic_id, request.group
        poll.partitions.extend(share.partitions)
        poll.consumer, poll.consumer_name = request.consumer, request.consumer_name
        poll.messages_max, poll.bytes_max = request.messages_max, POLL_BYTES
        poll.wait_ms, poll.visibility_ms = int(wait * 1000), request.visibility_ms
        poll.auto_ack, poll.start_latest = request.auto_ack, request.start_latest
        is_certain = False
        try:
            reply = await router.exchange(share.target.address, envelope, (), attempts, wait)
            is_certain = True
            return self._poll_result_of(request, share, reply)
        except QuiverError as error:
            is_certain = not isinstance(error, ConnectionFailed | Timeout)
            raise
        finally:
            if not is_certain and not request.auto_ack:
                # Also if whoever waited was cancelled: something may be leased all the same.
                until = router.transport.now() + request.visibility_ms / 1000
                for partition in share.partitions:
                    source = LeaseSource(request.topic, request.group, partition)
                    self._held_leases.may_have_taken(source, until)

    async def await_ready(
        self,
        request: PollRequest,
        shares: Sequence[LeaderPartitions],
        wait: float,
        attempts: Attempts,
    ) -> list[LeaderPartitions]:
        """Ask all of them to tell when there is something; return those that do, or fail."""
        router = self._router
        posted: list[tuple[LeaderPartitions, Posted]] = []
        try:
            for share in shares:
                envelope = _await_request(request, share, wait)
                with suppress(QuiverError):  # whoever cannot be asked shows when it is polled
                    found = await router.post(share.target.address, envelope, attempts, wait)
                    posted.append((share, found))
            if not posted:
                return list(shares)
            asked = [(each.connection, each.request_id) for _, each in posted]
            await router.transport.first_answered(asked, min(each.deadline for _, each in posted))
            ready: list[LeaderPartitions] = []
            for share, each in list(posted):
                if each.connection.is_answered(each.request_id):
                    posted.remove((share, each))
                    ready += await self._partitions_ready(request.topic, share, each)
            return ready
        finally:
            for _, each in posted:
                router.drop(each)

    async def _partitions_ready(
        self, topic: str, share: LeaderPartitions, posted: Posted
    ) -> list[LeaderPartitions]:
        try:
            ready = (await self._router.take(posted)).response.ready
        except QuiverError:
            return [share]  # polling it tells why
        if ready.elsewhere:
            self._router.map.doubt(topic)
        partitions = set(ready.partitions)
        found = [each for each in share.partitions if each in partitions]
        return [share._replace(partitions=found)] if found else []

    def _poll_result_of(
        self, request: PollRequest, share: LeaderPartitions, reply: Reply
    ) -> PollResult:
        polled = reply.response.polled
        frames = iter(frames_of(reply.packet, self._router.limits))
        leased_runs = []
        for leased in polled.leased:
            lease = Lease(
                request.topic,
                share.target.topic_id,
                request.group,
                leased.partition,
                leased.lease,
                request.settle,
            )
            pieces = [
                LeasedPiece(piece.start, piece.start + piece.count, piece.delivery)
                for piece in leased.pieces
            ]
            leased_run = LeasedRun(lease, pieces, list(islice(frames, leased.frames)))
            leased_runs.append(leased_run)
            if lease.token:
                self._note(request, leased_run)
        if polled.elsewhere:
            self._router.map.doubt(request.topic)
        return PollResult(leased_runs, polled.throttled_ms / 1000, is_led=not polled.elsewhere)

    def _note(self, request: PollRequest, leased_run: LeasedRun) -> None:
        now = self._router.transport.now()
        until = now + request.visibility_ms / 1000
        source = LeaseSource(request.topic, request.group, leased_run.lease.partition)
        spans = ((piece.start, piece.end) for piece in leased_run.pieces)
        self._held_leases.took(source, leased_run.lease.token, spans, until, now)

    async def _look_around(self, topic: str) -> None:
        """Ask who leads; a cluster that does not tell is no reason to stop."""
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
    """Everybody is asked once."""

    def __init__(
        self, polling: Poller, request: PollRequest, end: float, attempts: Attempts
    ) -> None:
        self._polling = polling
        self._request = request
        self._end = end
        self._attempts = attempts
        self._now = polling._router.transport.now  # noqa: SLF001  (two halves of one module)
        self.has_answer = False
        self.is_lame = False
        """Not everybody could be asked who should have been."""
        self.failures: list[tuple[LeaderPartitions, QuiverError]] = []

    async def work(self, shares: list[LeaderPartitions]) -> PollResult:
        """What the first that has something gives."""
        if len(shares) == 1:
            return await self._ask(shares[0], self._left())
        near = [share for share in shares if share.target.direct]
        # Brokers in between look for a leader for as long as they may: these are not waited for.
        far = [share for share in shares if not share.target.direct]
        result = await self._first_of(near or far)
        if result.leased_runs or result.throttled_s or not self.has_answer:
            return result
        failed = [share for share, _ in self.failures]
        well = [share for share in near if share not in failed]
        if self._left() or far:
            self.is_lame = bool(failed or far)
            wait = max(_LOOK_SECONDS, self._left())
            wait = min(wait, _LAME_WAIT_SECONDS) if self.is_lame else wait
            ready = await self._polling.await_ready(self._request, well + far, wait, self._attempts)
            result = await self._first_of(ready)
        return result

    async def _first_of(self, shares: Sequence[LeaderPartitions]) -> PollResult:
        result = NOTHING
        for share in shares:
            result = await self._ask(share, 0.0)
            if result.leased_runs or result.throttled_s:
                break
        return result

    async def _ask(self, share: LeaderPartitions, wait: float) -> PollResult:
        attempts = self._attempts
        if self.has_answer and not share.target.direct:
            attempts = self._polling.short_attempts(self._request)
        try:
            result = await self._polling.poll_share(self._request, share, wait, attempts)
        except QuiverError as error:
            self.failures.append((share, error))
            # A topic that is not there may have been created again: a fresh map tells.
            if not error.retriable and error.code != "TopicNotFound":
                raise
            return NOTHING
        self.has_answer = True
        return result

    def _left(self) -> float:
        return max(0.0, min(WAIT_SECONDS, self._end - self._now()))


def turned(shares: Sequence[LeaderPartitions], turn: int) -> list[LeaderPartitions]:
    """Each time another one first, and other partitions first: nobody is always last."""
    first = turn % len(shares)
    return [
        share._replace(partitions=_rotated(share.partitions, turn // len(shares)))
        for share in [*shares[first:], *shares[:first]]
    ]


def _rotated(partitions: list[int], turn: int) -> list[int]:
    first = turn % len(partitions)
    return partitions[first:] + partitions[:first]


def _await_request(request: PollRequest, share: LeaderPartitions, wait: float) -> proto.Request:
    envelope = proto.Request(direct=share.target.direct)
    ask = envelope.await_ready
    ask.topic, ask.topic_id, ask.group = request.topic, share.target.topic_id, request.group
    ask.partitions.extend(share.partitions)
    ask.consumer, ask.consumer_name = request.consumer, request.consumer_name
    ask.wait_ms, ask.start_latest = int(wait * 1000), request.start_latest
    return envelope
