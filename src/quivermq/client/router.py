"""Sends requests to the leader of a partition, or to any broker, until they succeed.

What a failure teaches is kept in the `ClusterMap`; how long to go on is the business of `Attempts`.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from quivermq.batches import DEFAULT_LIMITS, Frame, Limits
from quivermq.client.asyncio_transport import AsyncioConnection, AsyncioTransport
from quivermq.client.blocking_transport import BlockingConnection, BlockingTransport
from quivermq.client.cluster_map import ClusterMap, Route
from quivermq.client.retry import Attempts
from quivermq.client.transport import Connection, Reply, Transport
from quivermq.errors import (
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    QuiverError,
    Timeout,
    TopicNotFound,
)
from quivermq.wire import error_from_proto, proto

if TYPE_CHECKING:
    from quivermq.tracing import ClientTracer

# Older than this, a route is asked for again when it is next used.
ROUTE_SECONDS_MAX: Final = 60.0


class Target(NamedTuple):
    """The broker to ask about a partition."""

    address: str
    direct: bool
    """The broker is to answer itself; else it may pass the request on."""
    topic_id: bytes


class LeaderPartitions(NamedTuple):
    """Partitions of a topic that one broker leads."""

    target: Target
    leader: int
    """0: none, as far as is known."""
    partitions: list[int]


class Posted(NamedTuple):
    """A request that is under way, on a connection of its own."""

    connection: Connection
    request_id: int
    address: str
    deadline: float


class Router:
    """Sends requests where they belong."""

    def __init__(
        self,
        transport: Transport,
        servers: list[str],
        timeout: float,
        tracer: "ClientTracer | None" = None,
    ) -> None:
        self.transport = transport
        self.timeout = timeout
        self.tracer = tracer
        """None: nothing is traced."""
        self.map = ClusterMap(servers)
        self.limits: Limits = DEFAULT_LIMITS
        """The limits of the brokers, as the last one said."""
        self.zone = ""
        """Followers of this zone are asked first; "": any."""
        self._welcome: proto.Welcome | None = None
        """That of the broker that said so."""
        self._blocking = transport if isinstance(transport, BlockingTransport) else None
        self._asyncio = transport if isinstance(transport, AsyncioTransport) else None

    @property
    def is_blocking(self) -> bool:
        """There is no event loop: a call has a connection for itself."""
        return self._blocking is not None

    def attempts(self, what: str) -> Attempts:
        """An operation begins."""
        return Attempts(self.transport, self.timeout, what)

    async def ask_any(
        self, request: proto.Request, attempts: Attempts, first: str = ""
    ) -> proto.Response:
        """The answer of any broker, `first` being asked first; it passes on what is not its own."""
        while True:
            servers = self.map.servers(self.transport.now())
            for server in dict.fromkeys([first, *servers] if first else servers):
                try:
                    return (await self.exchange(server, request, (), attempts)).response
                except QuiverError as error:
                    if not error.retriable:
                        raise
                    attempts.record_failure(server, error)
                    self.map.ask_last(server)
                    if not isinstance(error, ConnectionFailed):
                        break
                    attempts.check_time()
            first = ""
            await attempts.pause()

    async def ask_leader(
        self,
        topic: str,
        partition: int,
        request: proto.Request,
        attempts: Attempts,
        frames: Sequence[Frame] = (),
    ) -> Reply:
        """The answer of the partition's leader."""
        body = getattr(request, request.WhichOneof("body") or "")
        while True:
            target = await self.target(topic, partition, attempts)
            request.direct = target.direct
            body.topic_id = target.topic_id
            try:
                return await self.exchange(target.address, request, frames, attempts)
            except QuiverError as error:
                await self.recover(topic, partition, target, error, attempts)

    async def exchange(
        self,
        address: str,
        request: proto.Request,
        frames: Sequence[Frame],
        attempts: Attempts,
        wait: float = 0.0,
    ) -> Reply:
        """One attempt: the broker's answer, or its refusal raised. `wait` is time that the broker
        may take on purpose."""
        transport = self.transport
        deadline = attempts.attempt_deadline() + wait
        if self.tracer is not None:
            self.tracer.inject(request)
        try:
            connection = self.ready_connection(address) or await self.connection(address, deadline)
            try:
                request.timeout_ms = max(1, int((deadline - transport.now()) * 1000))
                if isinstance(connection, BlockingConnection):
                    reply = connection.ask(request, frames, deadline)
                elif isinstance(connection, AsyncioConnection):
                    reply = await connection.ask(request, frames, deadline)
                else:
                    request_id = await connection.post(request, frames, deadline)
                    reply = await connection.take(request_id, deadline)
            finally:
                transport.release(connection)
        except (ConnectionFailed, Timeout):
            self.map.avoid(address, transport.now())
            raise
        self.map.stop_avoiding(address)
        if reply.response.WhichOneof("body") == "error":
            raise error_from_proto(reply.response.error)
        return reply

    async def ask_all(
        self, asks: Sequence[tuple[str, proto.Request]], attempts: Attempts
    ) -> list[Reply | QuiverError]:
        """One attempt at several brokers at once, by address: what each answered or refused."""
        if len(asks) == 1:
            ((address, request),) = asks
            try:
                return [await self.exchange(address, request, (), attempts)]
            except QuiverError as error:
                return [error]
        answers: list[Posted | QuiverError] = []
        outcomes: list[Reply | QuiverError] = []
        try:
            for address, request in asks:
                try:
                    answers.append(await self.post(address, request, attempts))
                except QuiverError as error:
                    answers.append(error)
            for answer in answers:
                try:
                    outcomes.append(
                        await self.take(answer) if isinstance(answer, Posted) else answer
                    )
                except QuiverError as error:
                    outcomes.append(error)
        finally:
            for answer in answers[len(outcomes) :]:
                if isinstance(answer, Posted):
                    self.drop(answer)
        return outcomes

    async def post(
        self, address: str, request: proto.Request, attempts: Attempts, wait: float = 0.0
    ) -> Posted:
        """Send a request; `take` or `drop` has to follow."""
        transport = self.transport
        deadline = attempts.attempt_deadline() + wait
        if self.tracer is not None:
            self.tracer.inject(request)
        try:
            connection = await self.connection(address, deadline)
            try:
                request.timeout_ms = max(1, int((deadline - transport.now()) * 1000))
                return Posted(
                    connection, await connection.post(request, (), deadline), address, deadline
                )
            except BaseException:
                transport.release(connection)
                raise
        except (ConnectionFailed, Timeout):
            self.map.avoid(address, transport.now())
            raise

    async def take(self, posted: Posted) -> Reply:
        """The answer to a posted request, or its refusal raised."""
        try:
            reply = await posted.connection.take(posted.request_id, posted.deadline)
        except (ConnectionFailed, Timeout):
            self.map.avoid(posted.address, self.transport.now())
            raise
        finally:
            self.transport.release(posted.connection)
        self.map.stop_avoiding(posted.address)
        if reply.response.WhichOneof("body") == "error":
            raise error_from_proto(reply.response.error)
        return reply

    def drop(self, posted: Posted) -> None:
        """Give up the answer."""
        posted.connection.cancel(posted.request_id)
        self.transport.release(posted.connection)

    async def connection(self, address: str, deadline: float) -> Connection:
        """A connection to a broker, to be released; its limits hold from then on."""
        connection = await self.transport.connection(address, deadline)
        if connection.welcome is not self._welcome:
            self._adopt_limits(connection.welcome)
        return connection

    def ready_connection(self, address: str) -> BlockingConnection | AsyncioConnection | None:
        """The same, if that takes no waiting."""
        if self._asyncio is None:
            return self.idle_connection(address)
        connection = self._asyncio.open_connection(address)
        if connection is not None and connection.welcome is not self._welcome:
            self._adopt_limits(connection.welcome)
        return connection

    def idle_connection(self, address: str) -> BlockingConnection | None:
        """The same, if a blocking transport has an idle one; None: there is none."""
        if self._blocking is None:
            return None
        connection = self._blocking.take_idle(address)
        if connection is not None and connection.welcome is not self._welcome:
            self._adopt_limits(connection.welcome)
        return connection

    def _adopt_limits(self, welcome: proto.Welcome) -> None:
        self._welcome = welcome
        if welcome.batch_bytes_max and (
            welcome.batch_bytes_max != self.limits.batch_bytes_max
            or welcome.message_bytes_max != self.limits.message_bytes_max
        ):
            self.limits = Limits(
                message_bytes_max=welcome.message_bytes_max,
                batch_bytes_max=welcome.batch_bytes_max,
            )

    async def route(
        self,
        topic: str,
        attempts: Attempts,
        *,
        create: bool = False,
        partition: int | None = None,
    ) -> Route:
        """Where a topic is; raises `TopicNotFound`, and `InvalidRequest` without the partition."""
        route = self.map.route(topic)
        if route is None:
            route = await self.refresh(topic, attempts, create=create)
        elif self.transport.now() - route.heard_at > ROUTE_SECONDS_MAX:
            route = await self._checked_route(route, topic)
        elif type(partition) is int and partition >= len(route.leaders):
            # It may have been added since.
            route = await self.refresh(topic, attempts, latest=True)
        if partition is not None:
            route.check(partition)
        return route

    def fresh_route(self, topic: str, partition: int | None = None) -> Route | None:
        """Where a topic is, if nothing has to be asked for that: what `route` would return."""
        route = self.map.route(topic)
        if route is None or self.transport.now() - route.heard_at > ROUTE_SECONDS_MAX:
            return None
        is_there = partition is None or (
            type(partition) is int and 0 <= partition < len(route.leaders)
        )
        return route if is_there else None

    async def consumed_route(self, topic: str, attempts: Attempts) -> Route:
        """Where a topic is that is consumed. If there is none, it is created where brokers create
        topics by themselves, and the user may."""
        try:
            return await self.route(topic, attempts)
        except TopicNotFound:
            with suppress(Forbidden):
                return await self.refresh(topic, attempts, create=True)
            raise

    async def _checked_route(self, route: Route, topic: str) -> Route:
        """Partitions may have been added. A cluster that does not answer is no reason to stop."""
        route.heard_at = self.transport.now()
        try:
            return await self.refresh(topic, Attempts(self.transport, 1.0, "asking for the map"))
        except TopicNotFound:
            raise
        except QuiverError:
            return route

    async def refresh(
        self, topic: str, attempts: Attempts, *, create: bool = False, latest: bool = False
    ) -> Route:
        """Ask where a topic is; the leader of the metadata, if the answer is to be the latest."""
        if not isinstance(topic, str) or not topic:
            raise InvalidRequest(f"a topic has a name, as in 'orders': {topic!r}")
        request = proto.Request()
        request.map.topics.append(topic)
        request.map.auto_create = create
        found = (await self.ask_any(request, attempts)).map
        while not (found.topics or (found.version and found.leader)):
            # A broker that has just started knows nothing yet.
            attempts.record_failure("the cluster", NotLeader("the metadata has no leader"))
            await attempts.pause()
            found = (await self.ask_any(request, attempts)).map
        if (latest or not found.topics) and found.leader != found.node:
            # A broker that lags behind may not know of it yet: the leader's answer counts.
            leader = next((each.address for each in found.brokers if each.id == found.leader), "")
            found = (await self.ask_any(request, attempts, first=leader)).map
        self.map.update(found, [topic], self.transport.now())
        route = self.map.route(topic)
        if route is None:
            raise TopicNotFound(f"there is no topic {topic!r}: create it first")
        return route

    def known_target(self, route: Route, partition: int) -> Target | None:
        """The leader, if the map is as it was and the leader can be reached."""
        address = self.map.leader_address(route, partition, self.transport.now())
        return Target(address, True, route.id) if address else None

    async def target(
        self, topic: str, partition: int, attempts: Attempts, *, follower: int | None = None
    ) -> Target:
        """The broker to ask about a partition: one that can be reached, best its leader.

        With a number, best one of its followers: the same one for the same number, of those in
        the zone of this client, if there are any.
        """
        route = await self.route(topic, attempts, partition=partition)
        now = self.transport.now()
        nodes = [route.leaders[partition]]
        if follower is not None:
            others = [node for node in route.replicas[partition] if node not in nodes]
            first = follower % len(others) if others else 0
            nodes = others[first:] + others[:first] + nodes
            if self.zone:
                nodes.sort(key=lambda node: self.map.zone(node) != self.zone)
        for node in nodes:
            address = self.map.address(node)
            if address and not self.map.is_avoided(address, now):
                return Target(address, True, route.id)
        return Target(self.map.servers(now)[0], False, route.id)

    async def is_nearer(self, topic: str, partition: int, attempts: Attempts) -> bool:
        """Whether a follower is in the zone of this client, and the leader is not."""
        if not self.zone:
            return False
        route = await self.route(topic, attempts, partition=partition)
        leader, replicas = route.leaders[partition], route.replicas[partition]
        return self.map.zone(leader) != self.zone and any(
            self.map.zone(node) == self.zone for node in replicas
        )

    async def by_leader(
        self, topic: str, attempts: Attempts, partitions: Sequence[int] | None = None
    ) -> list[LeaderPartitions]:
        """These partitions, or all of the topic, by the broker that leads them."""
        last = max(partitions, default=None) if partitions is not None else None
        route = self.fresh_route(topic, last)
        if route is None:
            route = await self.route(topic, attempts, partition=last)
        partitions_of: dict[int, list[int]] = {}
        leaders: list[LeaderPartitions] = []
        for partition in range(len(route.leaders)) if partitions is None else partitions:
            leader = route.leaders[partition if partitions is None else route.check(partition)]
            if leader in partitions_of:
                partitions_of[leader].append(partition)
                continue
            target = self.known_target(route, partition)
            if target is None:
                target = await self.target(topic, partition, attempts)
            found = LeaderPartitions(target, leader, [partition])
            leaders.append(found)
            if leader:
                # One without a leader stays by itself: whoever is asked passes it on.
                partitions_of[leader] = found.partitions
        return leaders

    async def recover(
        self, topic: str, partition: int, target: Target, error: QuiverError, attempts: Attempts
    ) -> None:
        """Learn from a failed attempt, and return when it is time for the next; or raise."""
        if isinstance(error, TopicNotFound):
            # Deleted, or created again, or not yet known there: a fresh map shows.
            route = await self.refresh(topic, attempts)
            if route.id != target.topic_id:
                return
        elif not error.retriable:
            raise error
        attempts.record_failure(target.address, error)
        if isinstance(error, NotEnoughReplicas):
            # That is how a broker sees it that is cut off from the others; they may have a leader.
            self.map.set_leader(topic, partition, 0, "")
        if isinstance(error, NotEnoughReplicas) or not target.direct:
            self.map.ask_last(target.address)
        if isinstance(error, NotLeader) and target.direct:
            self.map.set_leader(topic, partition, error.leader, error.leader_address)
            elsewhere = error.leader and error.leader_address not in {"", target.address}
            if elsewhere and attempts.may_follow_hint():
                return
        await attempts.pause()
        if isinstance(error, NotLeader | ConnectionFailed | Timeout):
            await self.refresh(topic, attempts)
