"""Makes this broker a member of its cluster: founds, joins, registers, and judges other brokers.

A broker registers at every start with the leader of the metadata partition, which knows whose data
directory is whose. Brokers check each other when they connect, by what the catalog says: one that
was emptied, swapped or restored from an old copy is not let in.

Nor is one whose release does not know the feature level of the cluster. It halts, because only
another release helps.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import quivermq
from quivermq.cluster import (
    METADATA_PARTITION,
    METADATA_TOPIC,
    NODE_MAX,
    OWN_LEVELS,
    Levels,
    judge,
    judge_levels,
    may_be_news,
    member_of,
    node_of,
    why_unfit,
)
from quivermq.errors import (
    ConnectionFailed,
    Corrupt,
    Forbidden,
    QuiverError,
    Unauthenticated,
    UnsupportedFormat,
)
from quivermq.node.data_dir import DataDirectory, PartitionName
from quivermq.node.disk_thread import DiskThread
from quivermq.node.forwarding import Forwarding
from quivermq.node.hosting import Hosting, WantedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.peers import STARTING, PeerLinks
from quivermq.node.tasks import end_tasks
from quivermq.settings import BrokerSettings
from quivermq.wire import (
    PROTOCOL,
    PROTOCOL_MIN,
    agreed_protocol,
    error_from_proto,
    proto,
    protocols,
)

logger = logging.getLogger("quivermq.membership")

METADATA_NAME: Final = PartitionName(METADATA_TOPIC, 0)
_AGAIN_S: Final = 0.1
_AGAIN_REFUSED_S: Final = 1.0
# Five seconds, or more where nobody answers.
_REPORTED_ATTEMPTS: Final = 50
_REGISTER_S: Final = 5.0


@dataclass(slots=True)
class Addresses:
    """Where this broker can be reached."""

    client: str = ""
    peer: str = ""
    http: str = ""


@dataclass(slots=True)
class Membership:
    """This broker's place in its cluster."""

    settings: BrokerSettings
    directory: DataDirectory
    disk_thread: DiskThread
    metadata: Metadata
    hosting: Hosting
    links: PeerLinks
    forwarding: Forwarding
    addresses: Addresses
    on_settled: Callable[[], None]
    on_new_life: Callable[[int], None]
    """Another broker was started."""
    on_unfit: Callable[[QuiverError], None]
    """This build does not fit the cluster, and has to stop."""
    heard_addresses: dict[int, str] = field(default_factory=dict)
    """Client addresses that other brokers told when they connected."""
    heard_boots: dict[int, int] = field(default_factory=dict)
    refusal: str = ""
    """Not "": this broker is not let in, and why."""
    is_registered: bool = False
    join_address: str = ""
    _task: asyncio.Task[None] | None = None
    _reported: str = ""
    _attempts: int = 0
    """At registering; they are reported now and then."""
    _level_to_be: int = 0
    """The feature level that is being noted."""

    # Starting.

    async def begin(self) -> None:
        """Open what is here, or found a cluster, or get ready to join one."""
        self.join_address = self.settings.join
        identity = self.directory.identity
        if identity.member:
            if not self.hosting.is_made(METADATA_PARTITION, identity.member):
                raise Corrupt(
                    f"the log of the metadata partition is lost from {self.directory.root}: start "
                    f"the broker with an empty directory, and run `quiver cluster replace "
                    f"{self.node_id}`"
                )
            await self._run_metadata(identity.member, ())
        elif not self.settings.join:
            founders = tuple(
                member_of(node, 0) for node in sorted({self.node_id, *self.settings.peers})
            )
            await self._run_metadata(member_of(self.node_id, 0), founders)
        if self.metadata.unfit:
            raise self.metadata.unfit
        for node, address in self.settings.peers.items():
            self.links.know(node, address)
        self._task = asyncio.create_task(self._stay_registered(), name="membership")

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @property
    def cluster_id(self) -> str:
        known = self.metadata.view.cluster
        return known.id if known else self.directory.identity.cluster_id

    @property
    def level(self) -> int:
        """The feature level by which this broker writes; 0 before it knows one.

        It is the one in its directory: whatever is written by a level, an earlier release that is
        started on this directory has been warned.
        """
        return self.directory.identity.level

    def learn_level(self) -> None:
        """The catalog may say another level than the directory. Until the disk has it, this broker
        goes on at the old one, which all can read."""
        self.metadata.level = self.level
        cluster, directory = self.metadata.view.cluster, self.directory
        if cluster is None or cluster.level <= max(self.level, self._level_to_be):
            return
        level, release = cluster.level, cluster.release
        self._level_to_be = level

        def learned(result: object) -> None:
            self._level_to_be = 0
            self.metadata.level = self.level
            if isinstance(result, BaseException):
                # It is tried again with the next change.
                logger.error("feature level %d cannot be noted", level, exc_info=result)
            else:
                logger.info("node %d is at feature level %d", self.node_id, level)

        self.disk_thread.submit(lambda: directory.learn_level(level, release), learned)

    async def level_noted(self) -> None:
        """Return when the disk has the level that the catalog tells here, or did not take it."""
        self.learn_level()
        # The disk thread does its work in order.
        await self.disk_thread.run(lambda: None)

    async def _settle(self, cluster_id: str, member: int) -> None:
        """Two copies are synced one after the other, which takes long where the disk is busy: so
        not on the event loop."""
        await self.disk_thread.run(lambda: self.directory.settle(cluster_id, member))

    @property
    def is_current(self) -> bool:
        """Whether the catalog that is known here is younger than the start of this broker."""
        identity, known = self.directory.identity, self.metadata.view.brokers.get(self.node_id)
        return known is not None and identity.is_that_of(known)

    async def _run_metadata(self, member: int, founders: tuple[int, ...]) -> None:
        first = bool(founders) and member == founders[0]
        want = WantedReplica(METADATA_PARTITION, METADATA_NAME, member, founders, first)
        hosted = await self.hosting.open_replica(want)
        await self._settle(self.directory.identity.cluster_id, member)
        # What is known to be committed, at once: others are judged by it.
        hosted.advance()
        self.metadata.run_on(hosted)

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    # Registering.

    async def _stay_registered(self) -> None:
        while not self.is_registered:
            try:
                await self._register()
            except UnsupportedFormat as error:
                # It keeps what it has, for the release that is needed.
                self.refusal = str(error)
                self.on_unfit(error)
                return
            except Forbidden as error:
                await self._refused(str(error))
                await asyncio.sleep(_AGAIN_REFUSED_S)
            except Unauthenticated as error:
                # One of the two has another secret.
                self._note_refusal(str(error))
                await asyncio.sleep(_AGAIN_REFUSED_S)
            except QuiverError as error:
                self._report_failure(str(error))
                await asyncio.sleep(_AGAIN_S)
            except Exception:
                logger.exception("registering failed, and is tried again")
                await asyncio.sleep(_AGAIN_REFUSED_S)

    def _report_failure(self, reason: str) -> None:
        """Most reasons pass by themselves, soon after a cluster starts; not those of TLS."""
        self._attempts += 1
        if "TLS" in reason and reason != self._reported:
            self._reported = reason
            logger.error("node %d cannot register with its cluster: %s", self.node_id, reason)
        elif self._attempts % _REPORTED_ATTEMPTS == 0:
            logger.warning(
                "node %d is not registered with its cluster, and tries again: %s",
                self.node_id,
                reason,
            )

    async def _register(self) -> None:
        registered = await self._ask_to_register()
        identity = self.directory.identity
        if registered.member != identity.member:
            await self._become(registered.member)
        await self._settle(registered.cluster_id, registered.member)
        for broker in registered.brokers:
            if broker.id != self.node_id:
                self.links.know(broker.id, broker.peer_address)
        self.is_registered = bool(registered.cluster_id)
        self.refusal = ""
        if self.is_registered:
            logger.info("node %d is a member of cluster %s", self.node_id, registered.cluster_id)
            self.on_settled()
        else:
            await asyncio.sleep(_AGAIN_S)

    async def _ask_to_register(self) -> proto.BrokerRegistered:
        """Register with the leader, as far as it is known; other brokers forward it."""
        identity, addresses = self.directory.identity, self.addresses
        request = proto.Request(
            register_broker=proto.RegisterBroker(
                id=identity.node_id,
                directory_id=bytes.fromhex(identity.directory_id),
                boot=identity.boot,
                lives=map(bytes.fromhex, identity.lives),
                address=addresses.client,
                peer_address=addresses.peer,
                http_address=addresses.http,
                version=quivermq.__version__,
                joining=identity.member == 0,
                cluster_id=identity.cluster_id,
                level_min=OWN_LEVELS.low,
                level_max=OWN_LEVELS.high,
                zone=self.settings.zone,
            )
        )
        error: QuiverError | None = None
        for address in self._whom_to_ask():
            try:
                response, _ = await self.forwarding.send(address, request, (), _REGISTER_S)
            except UnsupportedFormat as failure:
                # The process there speaks another protocol; that says nothing of the cluster.
                error = ConnectionFailed(str(failure))
                continue
            except QuiverError as failure:
                error = failure
                continue
            if response.WhichOneof("body") == "broker_registered":
                return response.broker_registered
            error = error_from_proto(response.error)
            if isinstance(error, Forbidden | UnsupportedFormat):
                break
        raise error or QuiverError("no broker is known that could be asked")

    def tell_zone(self) -> None:
        """Register once more if the catalog lacks the zone: a broker of an earlier release led it
        when this one registered. Called for every change of the catalog, so it need not succeed."""
        known = self.metadata.view.brokers.get(self.node_id)
        if known is None or known.zone == self.settings.zone or not self.is_current:
            return
        if self.is_registered and self._task is not None and self._task.done():
            self._task = asyncio.create_task(self._register_again(), name="membership")

    async def _register_again(self) -> None:
        with suppress(QuiverError):
            await self._ask_to_register()

    def _whom_to_ask(self) -> list[str]:
        known = {broker.id: broker.address for broker in self.metadata.view.brokers.values()}
        known.update(self.heard_addresses)
        known[self.node_id] = self.addresses.client
        leader = self.metadata.leader
        first = [known[leader]] if leader in known else []
        others = [address for node, address in known.items() if node != self.node_id]
        joining = [self.join_address] if self.join_address else []
        if self.metadata.hosted is None:
            return list(dict.fromkeys([*joining, *others]))
        return list(dict.fromkeys([*first, *others, *joining]))

    async def _refused(self, reason: str) -> None:
        self._note_refusal(reason)
        identity = self.directory.identity
        if identity.member and not identity.cluster_id and self.metadata.view.version == 0:
            # It never was a member of anything: it can be given another number. One that was must
            # keep what it has, though it may know nothing now: its log can be damaged, the address
            # of the cluster a mistake.
            await self.leave()

    def _note_refusal(self, reason: str) -> None:
        if reason != self.refusal:
            logger.error("node %d is not let in: %s", self.node_id, reason)
        self.refusal = reason

    async def leave(self) -> None:
        """Give up the metadata replica that runs here, and be as empty as a new directory.

        The number first: a member that is found without its log counts as lost.
        """
        self.metadata.stop()
        await self._settle("", 0)
        await self.hosting.remove_replica(METADATA_PARTITION)

    async def _become(self, member: int) -> None:
        """Take the number that the cluster gave, with an empty log of the metadata partition."""
        await self.leave()
        await self._run_metadata(member, ())

    async def join(self, address: str) -> None:
        """Give up the cluster of one that this broker is, and join the one at `address`."""
        await self.close()
        await self.leave()
        self.is_registered = False
        self.join_address = address
        self._task = asyncio.create_task(self._stay_registered(), name="membership")
        # The request may be given up; the broker has left, and must get in.
        await asyncio.shield(self._task)
        if not self.is_registered:
            raise UnsupportedFormat(self.refusal)

    # Who is who.

    def hello(self) -> proto.PeerHello:
        identity = self.directory.identity
        return proto.PeerHello(
            protocol=PROTOCOL,
            protocol_min=PROTOCOL_MIN,
            level_min=OWN_LEVELS.low,
            level_max=OWN_LEVELS.high,
            level=self.level,
            cluster_id=self.cluster_id,
            node=identity.node_id,
            directory_id=bytes.fromhex(identity.directory_id),
            boot=identity.boot,
            lives=map(bytes.fromhex, identity.lives),
            peer_address=self.addresses.peer,
            address=self.addresses.client,
            version=quivermq.__version__,
        )

    def welcome(self, hello: proto.PeerHello) -> str:
        """Why a broker that connects is refused; "" if it is welcome."""
        objection = self.objection(hello)
        if objection:
            return objection
        self._hear(hello)
        if hello.node in self.links.peers or not self.metadata.view.brokers:
            # A broker that joins hears of the others from the catalog, and gets that from one of
            # them, which needs an answer. The first leader may not have been in the catalog itself.
            self.links.know(hello.node, hello.peer_address)
        if hello.boot > self.heard_boots.get(hello.node, 0):
            self.heard_boots[hello.node] = hello.boot
            self.on_new_life(hello.node)
        return ""

    def recognise(self, node: int, answer: proto.PeerHello) -> str:
        """Why a broker that we connected to is not the one we want; "" if it is."""
        if answer.node != node:
            return f"node {answer.node} listens where node {node} should"
        objection = self.objection(answer)
        if not objection:
            self._hear(answer)
        return objection

    def _hear(self, hello: proto.PeerHello) -> None:
        """Note where clients reach a broker. One whose doors are not open yet does not say."""
        if hello.address:
            self.heard_addresses[hello.node] = hello.address

    def objection(self, hello: proto.PeerHello) -> str:
        """Why a broker must not take part, by what is known at this moment; "" if it may."""
        if unfit := self._misfit(hello):
            return unfit
        if hello.node == self.node_id or not 0 < hello.node <= NODE_MAX:
            return f"it cannot be node {hello.node}: that is this broker, or no broker's number"
        if self.directory.identity.cluster_id and self.metadata.hosted is None:
            return STARTING
        try:
            self._judge(hello)
            judge_levels(self.metadata.view, hello.node, _levels_of(hello), hello.version)
        except (Forbidden, UnsupportedFormat) as error:
            return str(error)
        return ""

    def _misfit(self, hello: proto.PeerHello) -> str:
        """Why the releases of two brokers do not fit together, whatever the catalog says."""
        here = f"this broker (release {quivermq.__version__})"
        there = f"node {hello.node} (release {hello.version[:50] or 'unknown'})"
        if not agreed_protocol(hello.protocol_min, hello.protocol):
            return (
                f"{there} speaks {protocols(hello.protocol_min, hello.protocol)}, {here} speaks "
                f"{protocols(PROTOCOL_MIN, PROTOCOL)}: upgrade the older one"
            )
        if not hello.level_max:
            return f"{there} is older than release 0.2.0, and does not fit together with {here}"
        if hello.level and (why := why_unfit(hello.level, "", OWN_LEVELS, quivermq.__version__)):
            return f"{here} does not fit together with {there}: {why}"
        return ""

    def _judge(self, hello: proto.PeerHello) -> None:
        view = self.metadata.view
        directory_id = hello.directory_id.hex()
        if not self.is_current and may_be_news(view, hello.node, directory_id, hello.cluster_id):
            # It may be the leader, from whom alone this broker can learn of it.
            return
        hosted = self.metadata.hosted
        members = hosted.replica.configuration.members if hosted else ()
        unknown = hello.node not in view.brokers
        judge(
            view,
            hello.node,
            directory_id,
            [life.hex() for life in hello.lives],
            hello.cluster_id,
            joining=unknown
            and (not view.brokers or hello.node in {node_of(member) for member in members}),
        )


def _levels_of(hello: proto.PeerHello) -> Levels:
    return Levels(hello.level_min, hello.level_max)
