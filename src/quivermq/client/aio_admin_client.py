# Generated from admin_client.py by tests/client/derive_aio.py: change it there, and run `make aio`.
"""The asyncio client: every call of the blocking one, awaitable, with its documentation."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from quivermq.client.checks import Payload
from quivermq.client.cursor import Place
from quivermq.client.dead_letter_admin import Letters, letter_filter
from quivermq.client.group_admin import DelayedMessages
from quivermq.client.group_models import (
    DeadLetter,
    DelayedInfo,
    GroupInfo,
    InFlightInfo,
    Redriven,
)
from quivermq.client.lifecycle import AsyncClientLifecycle
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
)


class AsyncAdminClient(AsyncClientLifecycle):
    """Administers a cluster; `AsyncClient` adds what produces and consumes."""

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        retention: Retention | None = None,
        rate_limit: RateLimit | None = None,
        max_deliveries: int = 5,
        dead_letter: str | None = None,
        retry: Retry | None = None,
        group_idle_retention: Idle = UNCHANGED,
        drop_expired: bool | Unchanged = UNCHANGED,
    ) -> TopicInfo:
        """Create a topic, and wait until it can be used.

        >>> await client.create_topic("orders", partitions=4, retention=Retention(max_age=86400))

        To create a topic again changes nothing, and raises `TopicExists` if the settings differ.
        `partitions` and `replication` are by default those of the brokers' settings.
        """
        return await self._core.admin.create_topic(
            name,
            partitions,
            replication,
            retention=retention,
            rate_limit=rate_limit,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            retry=retry,
            group_idle_retention=group_idle_retention,
            drop_expired=drop_expired,
        )

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Retention | Unchanged | None = UNCHANGED,
        rate_limit: RateLimit | Unchanged | None = UNCHANGED,
        max_deliveries: int | Unchanged = UNCHANGED,
        dead_letter: str | Unchanged | None = UNCHANGED,
        retry: Retry | Unchanged | None = UNCHANGED,
        group_idle_retention: Idle = UNCHANGED,
        drop_expired: bool | Unchanged = UNCHANGED,
    ) -> TopicInfo:
        """Change the settings that are given. Partitions can only be added.

        >>> await client.alter_topic("orders", partitions=8)

        With more partitions, keys go to other partitions than before.
        """
        return await self._core.admin.alter_topic(
            name,
            partitions,
            retention,
            rate_limit,
            max_deliveries,
            dead_letter,
            retry,
            group_idle_retention,
            drop_expired=drop_expired,
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it, for good."""
        await self._core.admin.delete_topic(name)

    async def topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Describe topics, in the order of their names: all, or those of `names`.

        Raises `TopicNotFound` if there is none of such a name.
        """
        wanted = None if names is None else list(names)
        return [] if wanted == [] else await self._core.admin.describe(wanted or [])

    async def topic_names(self) -> list[str]:
        """List the names of all topics: far less work than `topics`."""
        return await self._core.offsets.names()

    async def topic(self, name: str) -> TopicInfo:
        """Describe one topic; raises `TopicNotFound`.

        >>> (await client.topic("orders")).partitions[0].end_offset
        """
        return (await self._core.admin.describe([name]))[0]

    async def groups(self, topic: str) -> list[GroupInfo]:
        """Describe the groups of a topic, in the order of their names.

        >>> for group in await client.groups("orders"):
        ...     print(group.name, group.lag, group.in_flight)
        """
        return await self._core.groups.groups(topic)

    async def group(self, topic: str, group: str) -> GroupInfo:
        """Describe one group of a topic: its counts of messages by state, and its members."""
        return await self._core.groups.group(topic, group)

    async def seek(
        self, topic: str, group: str, to: Place = "earliest", partition: int | None = None
    ) -> dict[int, int]:
        """Move a group to another place in a topic; returns the new offsets, by partition.

        >>> await client.seek("orders", group="billing", to="earliest")
        {0: 0}

        `to` is an offset, "earliest", "latest", a datetime, its ISO 8601 text, or "@" and
        milliseconds since 1970. All leases end, and the group gets all messages from there on.
        """
        return await self._core.groups.seek(topic, group, to, partition)

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete a group: its next poll creates it anew."""
        await self._core.groups.delete_group(topic, group)

    async def in_flight(self, topic: str, group: str, limit: int = 1000) -> list[InFlightInfo]:
        """List messages that are leased to consumers of a shared group, the longest held first.

        >>> for each in await client.in_flight("orders", "billing"):
        ...     print(each.offset, each.count, each.program, each.held, each.deliveries)
        """
        return await self._core.groups.in_flight(topic, group, limit)

    async def delayed(self, topic: str, limit: int = 1000) -> list[DelayedInfo]:
        """List messages that a producer delayed and that are not due yet, the next one first."""
        return await self._core.groups.delayed(topic, limit)

    async def cancel_delayed(
        self, topic: str, partition: int | None, offsets: DelayedMessages
    ) -> int:
        """Cancel delayed messages; returns how many of them were not due yet.

        >>> await client.cancel_delayed("orders", 0, [17, 18])
        >>> await client.cancel_delayed("orders", None, await client.delayed("orders"))
        """
        return await self._core.groups.cancel_delayed(topic, partition, offsets)

    async def dead_letters(
        self,
        topic: str | None = None,
        limit: int = 1000,
        *,
        group: str | None = None,
        reason: str | None = None,
        key: Payload | None = None,
        older_than: float | timedelta | None = None,
        since: datetime | float | None = None,
    ) -> list[DeadLetter]:
        """List messages of a topic, or of all, that failed too often or were rejected.

        >>> for letter in await client.dead_letters("orders", reason="no stock"):
        ...     print(letter.original_offset, letter.reason, letter.value)

        `group` is the one that failed, `reason` a part of the reason; `older_than` is an age in
        seconds or a `timedelta`, `since` a `datetime` or seconds since 1970. Of each partition the
        oldest come first.
        """
        wanted = letter_filter(group, reason, key, older_than, since)
        return await self._core.dead_letters.list_letters(topic, limit, wanted)

    async def redrive(
        self,
        topic: str,
        offsets: Letters | None = None,
        partition: int | None = None,
        *,
        to: str = "group",
        rate: float | None = None,
        group: str | None = None,
        reason: str | None = None,
        key: Payload | None = None,
        older_than: float | timedelta | None = None,
        since: datetime | float | None = None,
    ) -> Redriven:
        """Let dead letters of a topic be delivered again; returns how many.

        >>> await client.redrive("orders")
        >>> await client.redrive("orders", to="orders.retry", reason="no stock", rate=100)

        By default only the group that failed gets each message again, in its old place; letters
        whose original is deleted meanwhile stay (`Redriven.stayed`). With `to="all"` they are
        stored in their topic again, for every group; any other `to` is a topic to store them in.
        At most `rate` a second go, which takes as long as that takes.

        Without `offsets`, which are those in the dead-letter topic, all letters; the filters are
        those of `dead_letters`.
        """
        wanted = letter_filter(group, reason, key, older_than, since)
        letters = self._core.dead_letters
        return await letters.redrive(topic, offsets, partition, to, rate, wanted)

    async def purge_dead_letters(
        self,
        topic: str,
        offsets: Letters | None = None,
        partition: int | None = None,
        *,
        group: str | None = None,
        reason: str | None = None,
        key: Payload | None = None,
        older_than: float | timedelta | None = None,
        since: datetime | float | None = None,
    ) -> int:
        """Drop dead letters of a topic, chosen as in `redrive`; returns how many. They are no
        longer listed."""
        wanted = letter_filter(group, reason, key, older_than, since)
        letters = self._core.dead_letters
        return int(await letters.redrive(topic, offsets, partition, wanted=wanted, purge=True))

    async def cluster(self, *, latest: bool = False) -> ClusterInfo:
        """Describe the brokers: which are alive, and which one leads the cluster.

        It is the answer of one broker, which may not have heard of the last changes. With `latest`
        a majority confirms it: a broker that is not in there has left, and may be stopped.
        """
        return await self._core.admin.cluster(latest=latest)

    async def stats(self, server: str | None = None) -> dict[str, float]:
        """Return the metrics of the broker at `server`, by name; by default of any broker."""
        return await self._core.admin.stats(server)

    async def bootstrap(self, addresses: Sequence[str]) -> ClusterInfo:
        """Make one cluster of empty brokers.

        >>> await client.bootstrap(["127.0.0.1:7600", "127.0.0.1:7601", "127.0.0.1:7602"])
        """
        return await self._core.admin.bootstrap(addresses)

    async def add_broker(self, address: str) -> ClusterInfo:
        """Add an empty broker to this cluster."""
        return await self._core.admin.add_broker(address)

    async def remove_broker(self, node: int, *, force: bool = False) -> None:
        """Remove a broker from the cluster: its partitions move to the others first.

        It may be stopped when `cluster(latest=True)` does not name it any more. With `force`, even
        if partitions lose their last replica.
        """
        await self._core.admin.remove_broker(node, force=force)

    async def replace_broker(self, node: int) -> None:
        """Accept the empty data directory of a broker that lost its data in the old one's place."""
        await self._core.admin.replace_broker(node)

    async def upgrade_cluster(self, to: int | None = None, *, dry_run: bool = False) -> UpgradeInfo:
        """Raise the feature level, by default to the highest that all brokers know. No way back."""
        return await self._core.admin.upgrade_cluster(to, dry_run=dry_run)

    async def rebalance(self, *, leaders_only: bool = False) -> RebalanceInfo:
        """Begin to spread partitions and leaders evenly; `rebalance_status` tells the progress."""
        return await self._core.admin.rebalance(leaders_only=leaders_only, status_only=False)

    async def rebalance_status(self) -> RebalanceInfo:
        """Return the progress of a rebalance."""
        return await self._core.admin.rebalance(leaders_only=False, status_only=True)

    async def transfer(self, topic: str | None, partition: int = 0, *, to: int) -> None:
        """Make node `to` the leader of a partition; with topic None, of the cluster's metadata."""
        await self._core.admin.transfer(topic, partition, to)
