"""Puts the parts of a broker together, and starts and stops them in order."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from quivermq.batches import Limits
from quivermq.cluster import METADATA_PARTITION, node_of, partition_id
from quivermq.errors import ConnectionFailed, Forbidden, NotEnoughReplicas, QuiverError
from quivermq.log import STORED_LIMITS, LogSettings
from quivermq.node.access_control import AccessControl
from quivermq.node.audit_log import AuditLog
from quivermq.node.cluster_maps import ClusterMaps
from quivermq.node.cluster_secret import PEER_LISTENER, ClusterSecret, read_secret
from quivermq.node.controller import Controller
from quivermq.node.counters import Counters
from quivermq.node.data_dir import DataDirectory
from quivermq.node.delivery.delivery import Delivery
from quivermq.node.disks import DeferredSyncDisk, TimedDisk
from quivermq.node.event_feed import EventFeed, FeedParts
from quivermq.node.forwarding import Forwarding
from quivermq.node.handlers.backup import BackupHandlers
from quivermq.node.handlers.cluster import ClusterHandlers, ClusterParts
from quivermq.node.handlers.fetch import FetchHandler
from quivermq.node.handlers.offsets import OffsetHandlers
from quivermq.node.handlers.produce import ProduceHandler, ProducerIds
from quivermq.node.handlers.sticky import StickyHandlers
from quivermq.node.handlers.topics import TopicHandlers
from quivermq.node.handlers.users import UserHandlers
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.hosting import Hosting
from quivermq.node.known_leaders import KnownLeaders, Leadership
from quivermq.node.listener import raise_file_limit, reachable
from quivermq.node.log_levels import LogLevels
from quivermq.node.machine import Machine
from quivermq.node.membership import Addresses, Membership
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.peers import LinkHooks, PeerLinks
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.node.retention import RetentionTimer
from quivermq.node.service import Service
from quivermq.node.sticky_coordinator import StickyCoordinator
from quivermq.node.tasks import end_tasks
from quivermq.node.traced_service import TracedService
from quivermq.raft import NOBODY
from quivermq.replica import ReplicaSettings
from quivermq.settings import BrokerSettings
from quivermq.tls import BrokerTls
from quivermq.wire import proto

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer, ReplicationSpans

logger = logging.getLogger("quivermq.broker")

_HANDOVER_S: Final = 2.0
_OPEN_AGAIN_S: Final = 10.0
"""Between two attempts to open logs that could not be opened."""
_UNMARKED_BYTES_MAX: Final = 1 << 20
"""Where no write waits for an fsync."""
_NAMED_MAX: Final = 10


class Broker:
    """One node of a cluster, without transports: a `Server` opens those on `service`."""

    def __init__(self, settings: BrokerSettings, machine: Machine | None = None) -> None:
        self.settings = settings
        self.machine = machine or Machine()
        self.addresses = Addresses()
        self.counters = Counters()
        self.leaders = KnownLeaders()
        self.tls: BrokerTls | None = None
        """Once it is started, if the settings name certificates."""
        self.on_unfit: Callable[[QuiverError], None] = lambda _: None
        """Set by the process that runs it: this build does not fit the cluster, and has to stop."""
        self.audit: AuditLog | None = None
        self.events: EventFeed | None = None
        """Once it is started, if the settings want it."""
        self.tracer: BrokerTracer | None = None
        """Once it is started, if the settings ask for tracing."""
        self._is_open = False
        self._is_stopping = False

    async def start(self) -> None:
        """Open the data directory and listen for peers; transports may be opened afterwards."""
        settings = self.settings
        self._secret = read_secret(settings)
        raise_file_limit()
        self.tls = BrokerTls.of(settings)
        self.tracer = self.machine.start_tracer(settings.node_id) if settings.tracing else None
        self.directory = DataDirectory(settings.data_dir, settings.node_id, self.machine)
        self.disk_thread = self.machine.start_disk_thread()
        self._make_parts()
        self._is_open = True
        self.directory.tidy_up()
        if self.tls is not None:
            self.tls.start()
        peer_address = await self.links.listen(settings.peer_listen)
        self.addresses.peer = settings.advertise_peer or reachable(peer_address, "advertise_peer")

    async def take_part(self, client_address: str, http_address: str = "") -> None:
        """Transports are open at these addresses: found, join or come back to a cluster."""
        settings, addresses = self.settings, self.addresses
        addresses.client = settings.advertise or reachable(client_address, "advertise")
        addresses.http = settings.advertise_http
        if http_address and not addresses.http:
            addresses.http = reachable(http_address, "advertise_http")
        if self.tls is not None:
            self.tls.check_host(addresses.client, "advertise")
            if self.tls.is_mutual:
                self.tls.check_host(addresses.peer, "advertise_peer")
        await self.membership.begin()
        self.scheduler.start_ticking()
        self.controller.start()
        self.coordinator.start()
        self.retaining.start()

    def _make_parts(self) -> None:
        """Low to high: each part knows only what stands before it. Requests and peers come in at
        the bottom, at `service` and `links`: these are told last where to take them."""
        settings = self.settings
        self.limits = Limits(settings.message_bytes_max, settings.batch_bytes_max)
        self._make_scheduler()
        self.metadata = Metadata(self._view_changed, self._unfit)
        self.coordinator = StickyCoordinator(self.metadata)
        self.log_levels = LogLevels(settings.node_id, settings.log_level, self.metadata)
        self.partitions = PartitionLookup(self.metadata, self.scheduler, self.leaders)
        self.maps = ClusterMaps(settings.node_id, self.partitions, self.is_alive)
        self._make_access()
        self.forwarding = Forwarding(
            self._address_of,
            STORED_LIMITS,
            f"broker {settings.node_id}",
            lambda: self.tls.dialer if self.tls else None,
            self.access.secret,
        )
        self._make_service()
        self._make_links()
        self.hosting = Hosting(settings.node_id, self.directory, self.disk_thread, self.scheduler)
        self.membership = Membership(
            settings,
            self.directory,
            self.disk_thread,
            self.metadata,
            self.hosting,
            self.links,
            self.forwarding,
            self.addresses,
            on_settled=self._catalog_changed,
            on_new_life=self._broker_restarted,
            on_unfit=self._unfit,
        )
        self.controller = Controller(
            self.metadata, self.partitions, self.is_alive, self.service.call_as_broker
        )
        self.fetching = FetchHandler(self.partitions, self.counters)
        self.consumers = Delivery(
            self.partitions, self.fetching, self.counters, self.service.call_as_broker
        )
        self.retaining = RetentionTimer(
            settings,
            self.partitions,
            self.scheduler,
            self.disk_thread,
            self.disk,
            self.consumers.trim,
        )
        self._register_handlers()
        self._guard()
        self._connect_links()
        self._hosting_wanted = asyncio.Event()
        self._hosting_task = asyncio.create_task(self._keep_hosting(), name="hosting")

    def _make_scheduler(self) -> None:
        settings, limits = self.settings, self.limits
        is_inline = settings.fsync != "always"
        make = DeferredSyncDisk if is_inline else TimedDisk
        self.disk = make(self.directory.disk, self.counters.fsync_seconds)
        self.scheduler = ReplicaScheduler(
            disk=self.disk,
            disk_thread=self.disk_thread,
            replica_settings=ReplicaSettings(
                tick_ms=settings.tick_ms, election_ticks=settings.election_ticks, limits=limits
            ),
            log_settings=LogSettings(
                segment_bytes=settings.segment_bytes,
                unmarked_bytes_max=_UNMARKED_BYTES_MAX if is_inline else 0,
                # Whatever a leader accepted, also one with larger limits, has to be stored here.
                limits=STORED_LIMITS,
            ),
            writes_inline=is_inline,
            copy_bytes_per_second=settings.rebalance_bytes_per_second,
            on_leadership=self._leadership_changed,
            on_trouble=self._tell_trouble,
        )

    def _make_access(self) -> None:
        self.access = AccessControl(
            self.settings,
            self._secret,
            self.metadata.catch_up,
            lambda: self.membership.is_current,
            self.scheduler.now_ms,
            self.partitions.slices,
        )

    def _make_service(self) -> None:
        make = Service if self.tracer is None else partial(TracedService, self.tracer)
        self.service: Service = make(
            self.forwarding,
            self.counters,
            self.settings.request_timeout_ms / 1000,
            self.has_left,
            self.metadata.catch_up,
        )

    def _make_links(self) -> None:
        settings = self.settings
        self.links = PeerLinks(
            STORED_LIMITS,
            settings.outbox_bytes_max,
            silence_s=settings.tick_ms * settings.election_ticks / 1000,
            hello_s=settings.hello_timeout_ms / 1000,
            given=settings.peers,
            connections_max=settings.peer_connections_max,
            tls=self.tls,
            secret=ClusterSecret(self._secret, PEER_LISTENER) if self._secret else None,
        )
        self.scheduler.links = self.links
        if self.tracer is not None:
            self._trace_replication(self.tracer.replication)

    def _trace_replication(self, spans: "ReplicationSpans") -> None:
        replicas = self.scheduler.replicas

        def name_of(partition: bytes) -> tuple[str, int] | None:
            hosted = replicas.get(partition)
            return (hosted.name.topic, hosted.name.partition) if hosted is not None else None

        spans.name_of = name_of
        self.scheduler.spans = self.links.spans = spans

    def _connect_links(self) -> None:
        self.links.connect(
            LinkHooks(
                hello=self.membership.hello,
                judge=self.membership.recognise,
                welcome=self.membership.welcome,
                objection=self.membership.objection,
                deliver=self.scheduler.deliver,
                leads=self._learn_leaders,
                silent=self.scheduler.wake_who_misses,
                returned=self.scheduler.wake_all_of,
                connected=self._connected,
                clock=self.scheduler.clock,
            )
        )

    def _register_handlers(self) -> None:
        topics = TopicHandlers(
            self.settings,
            self.metadata,
            self.partitions,
            self.scheduler,
            self.maps,
            self.forwarding,
            self.hosting.lost,
        )
        offsets = OffsetHandlers(self.partitions, self.consumers.mark_used)
        cluster = ClusterHandlers(
            ClusterParts(
                metadata=self.metadata,
                partitions=self.partitions,
                scheduler=self.scheduler,
                forwarding=self.forwarding,
                maps=self.maps,
                controller=self.controller,
                is_alive=self.is_alive,
                join=self.membership.join,
                level_noted=self.membership.level_noted,
                stats=self.stats,
            )
        )
        backups = BackupHandlers(
            self.metadata, self.partitions, self.fetching.readers, self.settings.partitions_max
        )
        self.service.register(
            ProduceHandler(self.partitions, self.counters, self.consumers.cache_stored),
            {
                **topics.handlers(),
                **self.fetching.handlers(),
                **offsets.handlers(),
                **ProducerIds(self.metadata).handlers(),
                **cluster.handlers(),
                **self.consumers.handlers(),
                **StickyHandlers(self.metadata, self.coordinator).handlers(),
                **UserHandlers(self.metadata, self.partitions.slices).handlers(),
                **self.log_levels.handlers(),
                **backups.handlers(),
            },
            {
                **topics.bulky(),
                **self.fetching.bulky(),
                **self.consumers.bulky(),
                **backups.bulky(),
            },
            backups.storing(),
            self.consumers.straight(),
        )

    def _guard(self) -> None:
        """Check requests, if there is anything to check: otherwise they cost nothing more."""
        if self.access.has_users:
            self.audit = AuditLog(
                self.settings.node_id,
                self.metadata,
                self.service.call_as_broker,
                self.scheduler.now_ms,
            )
            self.access.on_refused = self.audit.record_sign_in
            self.service.guard(self.access, self.audit.record)
        elif self.access.secret is not None:
            self.service.guard(self.access, lambda *_: None)
        self.access.start()
        self._begin_to_tell()

    def _begin_to_tell(self) -> None:
        if not self.settings.events:
            return
        self.events = events = EventFeed(
            FeedParts(
                node_id=self.settings.node_id,
                metadata=self.metadata,
                call=self.service.call_as_broker,
                now_ms=self.scheduler.now_ms,
                is_alive=self.is_alive,
                refusals=self.counters.refusals,
                findings=self.directory.take_findings,
            )
        )
        self.hosting.on_lost = lambda name, reason: events.tell(
            "replica_stopped", reason, topic=name.topic, partition=name.partition
        )
        self.retaining.on_trouble = lambda text: events.tell("disk_trouble", text)
        if self.tls is not None:
            self.tls.on_loaded = events.tell

    def _tell_trouble(self, hosted: HostedReplica, kind: str, detail: str) -> None:
        if self.events is not None:
            self.events.trouble(hosted, kind, detail)

    # Events that concern several parts.

    def is_alive(self, node: int) -> bool:
        """Whether a broker was heard lately."""
        if node == self.settings.node_id:
            return True
        peer = self.links.peers.get(node)
        return peer is not None and not peer.is_silent and not peer.refusal

    def has_left(self) -> bool:
        """Whether the cluster let this broker go: what it knows is old."""
        view, node = self.metadata.view, self.settings.node_id
        return node in view.retired and node not in view.brokers

    def _address_of(self, node: int) -> str:
        if node == self.settings.node_id:
            return self.addresses.client
        return self.membership.heard_addresses.get(node) or self.partitions.address_of(node)

    def _unfit(self, error: QuiverError) -> None:
        logger.critical("this broker has to stop: %s", error)
        if self.events is not None:
            self.events.tell("broker_unfit", f"this broker has to stop: {error}")
        self.membership.refusal = str(error)
        self.on_unfit(error)

    def _view_changed(self) -> None:
        self.membership.learn_level()
        self.access.learn(self.metadata.view)
        if self.audit is not None:
            self.audit.catalog_changed()
        if self.events is not None:
            self.events.catalog_changed()
        self.coordinator.catalog_changed()
        if self.metadata.view.layout_version == self.metadata.view.version:
            self._catalog_changed()

    def _catalog_changed(self) -> None:
        view = self.metadata.view
        for broker in view.brokers.values():
            if broker.id != self.settings.node_id:
                self.links.know(broker.id, broker.peer_address)
        self.links.judge_again()
        self.membership.tell_zone()
        self._hosting_wanted.set()
        self.consumers.dispatchers.catalog_changed()
        self.controller.schedule()

    async def _keep_hosting(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_OPEN_AGAIN_S if self.hosting.lost else None):
                    await self._hosting_wanted.wait()
            self._hosting_wanted.clear()
            view = self.metadata.view
            try:
                await self.hosting.reconcile(view)
            except Exception:
                logger.exception("the partitions of this broker are not as they should be")
                await asyncio.sleep(1.0)
                self._hosting_wanted.set()
            self.leaders.keep_only(view.partition_ids())
            self.counters.keep_only(
                {(topic.name, number) for topic, number, _ in view.partitions()}
            )
            await self._forget_removed_brokers()

    async def _forget_removed_brokers(self) -> None:
        view = self.metadata.view
        for node in [node for node in self.links.peers if node in view.retired]:
            if node not in view.brokers:
                await self.links.forget(node)

    def _leadership_changed(self, hosted: HostedReplica) -> None:
        if self.events is not None:
            self.events.leadership_changed(hosted)
        if hosted.id == METADATA_PARTITION:
            self.controller.schedule()
            if self.audit is not None:
                self.audit.catalog_changed()
            return
        self.consumers.leadership_changed(hosted)
        if hosted.was_serving:
            term = hosted.replica.term
            self.leaders.learn(hosted.id, Leadership(term, self.settings.node_id))
            self.links.tell_leadership([proto.Leadership(partition=hosted.id, term=term)])
        else:
            self.leaders.end(hosted.id, self.settings.node_id)

    def _learn_leaders(self, node: int, leads: Iterable[proto.Leadership]) -> None:
        for lead in leads:
            self.leaders.learn(lead.partition, Leadership(lead.term, node))

    def _broker_restarted(self, node: int) -> None:
        self.leaders.end_all_of(node)
        self.scheduler.wake_all_of(node)

    def _connected(self, node: int) -> None:
        self.scheduler.wake_all_of(node)
        self._tell_all_leaderships(node)

    def _tell_all_leaderships(self, node: int) -> None:
        leads = [
            proto.Leadership(partition=hosted.id, term=hosted.replica.term)
            for hosted in self.scheduler.replicas.values()
            if hosted.was_serving and hosted.id != METADATA_PARTITION
        ]
        if leads:
            self.links.tell_leadership(leads, node)

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @property
    def cluster_id(self) -> str:
        return self.membership.cluster_id

    @property
    def leader(self) -> int:
        """The node that leads the metadata partition; 0 if that is not known."""
        return self.metadata.leader

    @property
    def is_ready(self) -> bool:
        """Whether it is a member, and knows leaders of everything."""
        return self.unready is None

    @property
    def unready(self) -> QuiverError | None:
        """Why this broker should not be sent work yet, or any more; None: it is ready."""
        if self._is_stopping:
            return ConnectionFailed("this broker is stopping")
        if self.membership.refusal:
            return Forbidden(f"this broker is not let in: {self.membership.refusal}")
        if not self.membership.is_registered:
            return NotEnoughReplicas("this broker is not registered with its cluster yet")
        if not self.membership.is_current:
            return NotEnoughReplicas("this broker is still learning what its cluster holds")
        if not self.metadata.leader:
            return NotEnoughReplicas("no leader of the metadata partition is known")
        # Of what it holds: a partition whose disks are lost elsewhere is no reason to avoid it.
        leaderless = [
            f"{topic.name}/{number}"
            for topic, number, _, _ in self.metadata.view.hosted(self.settings.node_id)
            if (hosted := partition_id(topic.id, number)) not in self.hosting.lost
            and not self.partitions.leader_of(hosted)
        ]
        if leaderless:
            return NotEnoughReplicas(
                f"no leader is known of {len(leaderless)} partitions: "
                + ", ".join(leaderless[:_NAMED_MAX])
                + (", ..." if len(leaderless) > _NAMED_MAX else "")
            )
        return None

    def stats(self) -> dict[str, float]:
        replicas = self.scheduler.replicas.values()
        traffic = self.counters.total_traffic()
        return {
            "messages_produced_total": traffic.messages_in,
            "bytes_in_total": traffic.bytes_in,
            "messages_delivered_total": traffic.messages_out,
            "bytes_out_total": traffic.bytes_out,
            "requests_total": self.counters.requests,
            "forwarded_total": self.counters.forwarded,
            "overloaded_total": self.counters.overloaded,
            "connections": self.counters.connections,
            "partitions": len(self.scheduler.replicas),
            "partitions_led": sum(hosted.was_serving for hosted in replicas),
            "partitions_awake": self.scheduler.awake,
            "log_size_bytes": sum(hosted.log.size_bytes for hosted in replicas),
        }

    # Stopping.

    async def stop(self) -> None:
        """Hand leadership over, finish what is under way, close in order; also half a start."""
        if self._is_stopping or not self._is_open:
            return
        self._is_stopping = True
        if self.events is not None:
            node = self.settings.node_id
            self.events.tell("broker_stopping", f"broker {node} stops, because it was told to")
        for close in (
            self.membership.close,
            self.controller.close,
            self.coordinator.close,
            self.retaining.close,
            self._close_audit,
            self._close_events,
            self._hand_over,
            self.service.close,
            self.access.close,
            self.consumers.close,
            self._stop_hosting,
            self.links.close,
            self._close_replicas,
            self.forwarding.close,
            self._stop_tls,
            self._stop_tracing,
            self.disk_thread.close,
        ):
            try:
                await close()
            except Exception:
                # One part that fails to close must not keep the others open.
                logger.exception("%s failed", close.__qualname__)
        self.fetching.close()
        self.directory.close()

    async def _close_audit(self) -> None:
        if self.audit is not None:
            await self.audit.close()

    async def _close_events(self) -> None:
        if self.events is not None:
            await self.events.close()

    async def _stop_hosting(self) -> None:
        await end_tasks(self._hosting_task)

    async def _stop_tls(self) -> None:
        if self.tls is not None:
            await self.tls.close()

    async def _stop_tracing(self) -> None:
        if self.tracer is not None:
            await self.tracer.close()

    async def _close_replicas(self) -> None:
        self.scheduler.stop_ticking()
        for hosted in list(self.scheduler.replicas.values()):
            self.scheduler.remove(hosted)
        await self.disk_thread.run(self._sync_all)

    def _sync_all(self) -> None:
        if isinstance(self.disk, DeferredSyncDisk):
            self.disk.sync_now()

    async def _hand_over(self) -> None:
        """Hand leadership over, so that no partition has to wait for an election."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(_HANDOVER_S, self.settings.stop_timeout_ms / 1000)
        handed: set[HostedReplica] = set()
        while loop.time() < deadline:
            left = [hosted for hosted in self.scheduler.replicas.values() if self._is_left(hosted)]
            # An heir may need the vote of this broker, and that has to reach the disk first.
            if not left and all(self._has_heir(hosted) for hosted in handed):
                return
            for hosted in left:
                if successor := self._successor(hosted):
                    hosted.transfer_leader(successor)
                    handed.add(hosted)
            await asyncio.sleep(0.05)

    def _is_left(self, hosted: HostedReplica) -> bool:
        return hosted.was_serving and bool(self._others_alive(hosted))

    def _others_alive(self, hosted: HostedReplica) -> list[int]:
        """The other voters whose brokers were heard lately."""
        return [
            member
            for member in hosted.replica.configuration.voters
            if member != hosted.member and self.is_alive(node_of(member))
        ]

    def _has_heir(self, hosted: HostedReplica) -> bool:
        """Whether another member leads, or waiting for one is of no use."""
        if hosted.trouble or not self._others_alive(hosted):
            return True
        return hosted.replica.leader not in {NOBODY, hosted.member}

    def _successor(self, hosted: HostedReplica) -> int:
        """The member that is best prepared, among those that can be told and can ask for votes; 0
        if there is none."""
        others = [
            (lag, member)
            for member in self._others_alive(hosted)
            if self.links.reaches(node_of(member))
            and self.links.is_reached_by(node_of(member))
            and (lag := hosted.replica.lag_of(member)) is not None
        ]
        return min(others)[1] if others else 0
