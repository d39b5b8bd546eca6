"""Administration of topics, committed offsets and the cluster."""

from collections.abc import Sequence
from typing import Any, Final

from quivermq.client.checks import check_number, checked_name
from quivermq.client.connect_options import parse_servers
from quivermq.client.models import (
    UNCHANGED,
    ClusterInfo,
    Idle,
    RateLimit,
    RebalanceInfo,
    Retention,
    Retry,
    TopicInfo,
    Unchanged,
    UpgradeInfo,
    altered_settings,
    settings_to_proto,
)
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    QuiverError,
    Timeout,
    TopicNotFound,
)
from quivermq.topic_settings import LEADER_ONLY
from quivermq.wire import proto

# What brokers agree on takes longer than one answer: fewer, longer attempts.
_SHARE: Final = 0.5
_LOOKS_MAX: Final = 3
"""At the figures of a topic that was just made."""


class Admin:
    """The part of a client that administers topics and brokers."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def create_topic(
        self, name: str, partitions: int | None, replication: int | None, **settings: Any
    ) -> TopicInfo:
        """Create a topic, and wait until every partition has a leader."""
        request = proto.Request()
        create = request.create_topic
        create.name = checked_name("topic", name)
        create.partitions = _count("partitions", partitions)
        create.replication = _count("replication", replication)
        create.settings.CopyFrom(settings_to_proto(settings))
        await self._check_levels(create.settings)
        attempts = self._attempts(f"creating topic {name!r}")
        await self._router.ask_any(request, attempts)
        return await self._usable_topic(name, attempts)

    async def alter_topic(
        self,
        name: str,
        partitions: int | None,
        retention: Retention | Unchanged | None,
        rate_limit: RateLimit | Unchanged | None,
        max_deliveries: int | Unchanged,
        dead_letter: str | Unchanged | None,
        retry: Retry | Unchanged | None,
        group_idle_retention: Idle,
        *,
        drop_expired: bool | Unchanged = UNCHANGED,
    ) -> TopicInfo:
        """Change what is given; the rest stays as it is."""
        given = {
            "retention": retention,
            "rate_limit": rate_limit,
            "max_deliveries": max_deliveries,
            "dead_letter": dead_letter,
            "retry": retry,
            "group_idle_retention": group_idle_retention,
            "drop_expired": drop_expired,
        }
        await self._check_levels(settings_to_proto(given))
        attempts = self._attempts(f"altering topic {name!r}")
        before = await self._described_topic(name, attempts)
        request = proto.Request()
        request.alter_topic.name = name
        request.alter_topic.partitions = _count("partitions", partitions)
        request.alter_topic.settings.CopyFrom(settings_to_proto(altered_settings(before, given)))
        await self._router.ask_any(request, attempts)
        self._router.map.forget(name)
        return await self._usable_topic(name, attempts)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it."""
        request = proto.Request()
        request.delete_topic.name = checked_name("topic", name)
        attempts = self._attempts(f"deleting topic {name!r}")
        try:
            await self._router.ask_any(request, attempts)
        except TopicNotFound:
            # If an earlier attempt went unanswered, then it was that one that deleted it.
            if not attempts.was_uncertain:
                raise
        finally:
            self._router.map.forget(name)

    async def describe(self, names: Sequence[str]) -> list[TopicInfo]:
        """Topics by name; without names, all."""
        attempts = self._attempts("describing topics")
        found = await self._describe(names, attempts)
        missing = set(names) - {topic.name for topic in found}
        if missing:
            raise TopicNotFound(f"there is no topic {min(missing)!r}: create it first")
        return found

    async def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Remember an offset for a group."""
        check_number("offset", offset, least=0, whole=True)
        request = proto.Request()
        commit = request.commit_offset
        commit.topic, commit.group = checked_name("topic", topic), checked_name("group", group)
        commit.partition, commit.offset = _count("partition", partition, least=0), offset
        attempts = self._attempts(f"committing an offset of group {group!r}")
        await self._router.ask_leader(topic, partition, request, attempts)

    async def committed(self, topic: str, group: str) -> dict[int, int]:
        """The offsets that a group committed, by partition. Every leader knows its own."""
        request = proto.Request(direct=True)
        query = request.committed_offsets
        query.topic, query.group = checked_name("topic", topic), checked_name("group", group)
        attempts = self._attempts(f"asking for the offsets of group {group!r}")
        route = await self._router.refresh(topic, attempts)
        left = set(range(len(route.leaders)))
        found: dict[int, int] = {}
        while left:
            target = await self._router.target(topic, min(left), attempts)
            leader = route.leaders[min(left)]
            del query.partitions[:]
            query.partitions.extend(
                sorted(each for each in left if route.leaders[each] == leader)
                if target.direct
                else [min(left)]
            )
            request.direct = target.direct
            try:
                reply = await self._router.exchange(target.address, request, (), attempts)
            except QuiverError as error:
                await self._router.recover(topic, min(left), target, error, attempts)
                route = await self._router.route(topic, attempts)
                continue
            found.update(reply.response.offsets_committed.offsets)
            left.difference_update(query.partitions)
        return dict(sorted(found.items()))

    async def cluster(self, *, latest: bool = False) -> ClusterInfo:
        """The brokers, as one of them describes them; a broker outside of the cluster is believed
        only if no other answers, and never if the answer is to be the latest."""
        router = self._router
        request = proto.Request()
        request.map.brokers_only = True
        request.map.latest = latest
        attempts = self._attempts("asking for the cluster")
        first = ClusterInfo.of((await router.ask_any(request, attempts)).map)
        if first.is_told_by_member:
            return first
        for server in router.map.servers(router.transport.now()):
            try:
                reply = await router.exchange(server, request, (), attempts)
            except QuiverError:
                continue
            info = ClusterInfo.of(reply.response.map)
            if info.is_told_by_member:
                return info
            router.map.ask_last(server)
        if latest:
            raise NotEnoughReplicas("no broker answers that is a member of the cluster; try again")
        return first

    async def stats(self, server: str | None) -> dict[str, float]:
        """The metrics of one broker."""
        request = proto.Request()
        request.stats.SetInParent()
        attempts = self._attempts("asking for figures")
        if server is None:
            found = await self._router.ask_any(request, attempts)
        else:
            found = await self._ask_one(parse_servers(server)[0], request, attempts)
        return dict(sorted(found.stats_report.values.items()))

    async def bootstrap(self, addresses: Sequence[str]) -> ClusterInfo:
        """Make brokers that have no cluster yet into one; wait until all are in."""
        servers = parse_servers(addresses)
        request = proto.Request()
        request.bootstrap.addresses.extend(servers)
        attempts = self._attempts("bootstrapping the cluster")
        await self._ask_one(servers[0], request, attempts)
        return await self._all_in(servers, attempts)

    async def add_broker(self, address: str) -> ClusterInfo:
        """Let a broker that holds nothing join this cluster; wait until it is in."""
        server = parse_servers(address)[0]
        info = await self.cluster()
        via = next((node.address for node in info.nodes if node.id == info.leader), "")
        request = proto.Request()
        attempts = self._attempts(f"adding the broker at {server}")
        if info.by_gateway:
            # Only brokers can reach it: one of them asks it to join.
            request.bootstrap.addresses.append(server)
            await self._router.ask_any(request, attempts)
        else:
            request.join_cluster.address = via or info.nodes[0].address
            await self._ask_one(server, request, attempts)
        return await self._all_in([server], attempts)

    async def remove_broker(self, node: int, *, force: bool) -> None:
        """Let a broker go: its partitions move to the others."""
        request = proto.Request()
        request.remove_broker.id = _count("id", node)
        request.remove_broker.force = force
        await self._router.ask_any(request, self._attempts(f"removing broker {node}"))

    async def replace_broker(self, node: int) -> None:
        """A broker came back without its data: let it begin anew."""
        request = proto.Request()
        request.replace_broker.id = _count("id", node)
        await self._router.ask_any(request, self._attempts(f"replacing broker {node}"))

    async def rebalance(self, *, leaders_only: bool, status_only: bool) -> RebalanceInfo:
        """Spread partitions and leaders evenly, or return the progress of that."""
        request = proto.Request()
        request.rebalance.SetInParent()
        request.rebalance.leaders_only = leaders_only
        request.rebalance.status_only = status_only
        attempts = self._attempts("rebalancing")
        response = await self._router.ask_any(request, attempts)
        return RebalanceInfo.of(response.rebalance_progress)

    async def upgrade_cluster(self, to: int | None, *, dry_run: bool) -> UpgradeInfo:
        """Raise the feature level, or return whether that is possible."""
        request = proto.Request()
        request.upgrade_cluster.SetInParent()
        request.upgrade_cluster.to = _count("to", to)
        request.upgrade_cluster.dry_run = dry_run
        attempts = self._attempts("upgrading the cluster")
        response = await self._router.ask_any(request, attempts)
        return UpgradeInfo.of(response.cluster_upgraded)

    async def set_log_level(
        self, level: str | None, broker: int | None, name: str
    ) -> dict[int, dict[str, str]]:
        """Change what brokers log, or only ask; without a broker, of all of them."""
        nodes = [broker]
        if broker is None:
            # One that is not a member yet knows no brokers, and answers for itself.
            nodes = [each.id for each in (await self.cluster()).nodes] or [None]
        found: dict[int, dict[str, str]] = {}
        for node in nodes:
            request = proto.Request()
            asked = request.set_log_level
            asked.broker, asked.logger, asked.level = _count("broker", node), name, level or ""
            attempts = self._attempts("asking what brokers log")
            answer = (await self._router.ask_any(request, attempts)).log_levels
            found[answer.broker] = dict(sorted(answer.levels.items()))
        return found

    async def transfer(self, topic: str | None, partition: int, to: int) -> None:
        """Let another replica lead; without a topic, that of the metadata partition."""
        request = proto.Request()
        transfer = request.transfer
        transfer.to = _count("to", to)
        if topic is None:
            transfer.metadata = True
        else:
            transfer.topic = checked_name("topic", topic)
            transfer.partition = _count("partition", partition, least=0)
        await self._router.ask_any(request, self._attempts("transferring a leader"))

    async def _check_levels(self, settings: proto.TopicSettings) -> None:
        """Refuse settings above the feature level of the cluster: a broker of an earlier release
        skips what it does not know of a request, and would answer that all is well."""
        for setting in LEADER_ONLY:
            if not settings.HasField(setting.name):
                continue
            level, found = setting.level, (await self.cluster()).level
            if found < level:
                # The broker that answered may lag behind; the leader of the cluster does not.
                found = (await self.upgrade_cluster(level, dry_run=True)).before
            if found < level:
                raise InvalidRequest(
                    f"{setting.argument} needs feature level {level}, and the cluster is at "
                    f"{found}: run `quiver cluster upgrade` once all brokers know it"
                )

    async def _all_in(self, servers: Sequence[str], attempts: Attempts) -> ClusterInfo:
        """The cluster, once these brokers are alive members of it."""
        while True:
            info = await self.cluster()
            alive = {node.address for node in info.nodes if node.alive}
            missing = [server for server in servers if server not in alive]
            if info.leader and not missing:
                return info
            attempts.record_failure(
                "the cluster", Timeout(f"{missing or 'its leader'} is not there yet")
            )
            await attempts.pause()

    async def _usable_topic(self, name: str, attempts: Attempts) -> TopicInfo:
        """The topic, once every partition has a leader."""
        looks = 0
        while True:
            try:
                info = await self._described_topic(name, attempts)
                leaderless = [each.partition for each in info.partitions if not each.leader]
                # Leaders of a new topic may change once more: look again, but not for long.
                is_told = all(each.end_offset is not None for each in info.partitions)
                looks += 1
                if not leaderless and (is_told or looks > _LOOKS_MAX):
                    return info
                problem = Timeout(f"partitions {leaderless[:5]} of {name!r} have no leader yet")
            except TopicNotFound as error:
                problem = Timeout(f"a broker does not know of it yet: {error}")
            attempts.record_failure("the cluster", problem)
            await attempts.pause()

    async def _described_topic(self, name: str, attempts: Attempts) -> TopicInfo:
        found = await self._describe([checked_name("topic", name)], attempts)
        if not found:
            raise TopicNotFound(f"there is no topic {name!r}: create it first")
        return found[0]

    async def _describe(self, names: Sequence[str], attempts: Attempts) -> list[TopicInfo]:
        request = proto.Request()
        request.describe_topics.topics.extend(checked_name("topic", name) for name in names)
        if not names:
            request.describe_topics.SetInParent()
        response = await self._router.ask_any(request, attempts)
        found = [TopicInfo.of(topic) for topic in response.topics_described.topics]
        return sorted(found, key=lambda topic: topic.name)

    async def _ask_one(
        self, server: str, request: proto.Request, attempts: Attempts
    ) -> proto.Response:
        """The answer of this very broker."""
        while True:
            try:
                return (await self._router.exchange(server, request, (), attempts)).response
            except QuiverError as error:
                if not error.retriable:
                    raise
                attempts.record_failure(server, error)
            await attempts.pause()

    def _attempts(self, what: str) -> Attempts:
        return Attempts(self._router.transport, self._router.timeout, what, share=_SHARE)


def _count(name: str, value: int | None, least: int = 1) -> int:
    """0 stands for "not given"."""
    if value is None:
        return 0
    check_number(name, value, least=least, whole=True)
    if value >= 1 << 32:
        raise InvalidRequest(f"{name} must be below 2**32: {value!r}")
    return value
