"""The blocking client's calls that administer topics, groups, dead letters and brokers.

The asyncio client has the same ones, derived from this file: run `make aio` after a change.
"""

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
from quivermq.client.lifecycle import ClientLifecycle
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
from quivermq.client.transport import run


class AdminClient(ClientLifecycle):
    """Administers a cluster; `Client` adds to it what produces and consumes."""

    def create_topic(
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

        >>> client.create_topic("orders", partitions=4, retention=Retention(max_age=86400))

        To create a topic again changes nothing, and raises `TopicExists` if the settings differ.
        `partitions` and `replication` are by default those of the brokers' settings.
        """
        return run(
            self._core.admin.create_topic(
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
        )

    def alter_topic(
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

        >>> client.alter_topic("orders", partitions=8)

        With more partitions, keys go to other partitions than before.
        """
        return run(
            self._core.admin.alter_topic(
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
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it, for good."""
        run(self._core.admin.delete_topic(name))

    def topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Describe topics, in the order of their names: all, or those of `names`.

        Raises `TopicNotFound` if there is none of such a name.
        """
        wanted = None if names is None else list(names)
        return [] if wanted == [] else run(self._core.admin.describe(wanted or []))

    def topic_names(self) -> list[str]:
        """List the names of all topics: far less work than `topics`."""
        return run(self._core.offsets.names())

    def topic(self, name: str) -> TopicInfo:
        """Describe one topic; raises `TopicNotFound`.

        >>> client.topic("orders").partitions[0].end_offset
        """
        return run(self._core.admin.describe([name]))[0]

    def groups(self, topic: str) -> list[GroupInfo]:
        """Describe the groups of a topic, in the order of their names.

        >>> for group in client.groups("orders"):
        ...     print(group.name, group.lag, group.in_flight)
        """
        return run(self._core.groups.groups(topic))

    def group(self, topic: str, group: str) -> GroupInfo:
        """Describe one group of a topic: its counts of messages by state, and its members."""
        return run(self._core.groups.group(topic, group))

    def seek(
        self, topic: str, group: str, to: Place = "earliest", partition: int | None = None
    ) -> dict[int, int]:
        """Move a group to another place in a topic; returns the new offsets, by partition.

        >>> client.seek("orders", group="billing", to="earliest")
        {0: 0}

        `to` is an offset, "earliest", "latest", a datetime, its ISO 8601 text, or "@" and
        milliseconds since 1970. All leases end, and the group gets all messages from there on.
        """
        return run(self._core.groups.seek(topic, group, to, partition))

    def delete_group(self, topic: str, group: str) -> None:
        """Delete a group: its next poll creates it anew."""
        run(self._core.groups.delete_group(topic, group))

    def in_flight(self, topic: str, group: str, limit: int = 1000) -> list[InFlightInfo]:
        """List messages that are leased to consumers of a shared group, the longest held first.

        >>> for each in client.in_flight("orders", "billing"):
        ...     print(each.offset, each.count, each.program, each.held, each.deliveries)
        """
        return run(self._core.groups.in_flight(topic, group, limit))

    def delayed(self, topic: str, limit: int = 1000) -> list[DelayedInfo]:
        """List messages that a producer delayed and that are not due yet, the next one first."""
        return run(self._core.groups.delayed(topic, limit))

    def cancel_delayed(self, topic: str, partition: int | None, offsets: DelayedMessages) -> int:
        """Cancel delayed messages; returns how many of them were not due yet.

        >>> client.cancel_delayed("orders", 0, [17, 18])
        >>> client.cancel_delayed("orders", None, client.delayed("orders"))
        """
        return run(self._core.groups.cancel_delayed(topic, partition, offsets))

    def dead_letters(
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

        >>> for letter in client.dead_letters("orders", reason="no stock"):
        ...     print(letter.original_offset, letter.reason, letter.value)

        `group` is the one that failed, `reason` a part of the reason; `older_than` is an age in
        seconds or a `timedelta`, `since` a `datetime` or seconds since 1970. Of each partition the
        oldest come first.
        """
        wanted = letter_filter(group, reason, key, older_than, since)
        return run(self._core.dead_letters.list_letters(topic, limit, wanted))

    def redrive(
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

        >>> client.redrive("orders")
        >>> client.redrive("orders", to="orders.retry", reason="no stock", rate=100)

        By default only the group that failed gets each message again, in its old place; letters
        whose original is deleted meanwhile stay (`Redriven.stayed`). With `to="all"` they are
        stored in their topic again, for every group; any other `to` is a topic to store them in.
        At most `rate` a second go, which takes as long as that takes.

        Without `offsets`, which are those in the dead-letter topic, all letters; the filters are
        those of `dead_letters`.
        """
        wanted = letter_filter(group, reason, key, older_than, since)
        letters = self._core.dead_letters
        return run(letters.redrive(topic, offsets, partition, to, rate, wanted))

    def purge_dead_letters(
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
        return int(run(letters.redrive(topic, offsets, partition, wanted=wanted, purge=True)))

    def cluster(self, *, latest: bool = False) -> ClusterInfo:
        """Describe the brokers: which are alive, and which one leads the cluster.

        It is the answer of one broker, which may not have heard of the last changes. With `latest`
        a majority confirms it: a broker that is not in there has left, and may be stopped.
        """
        return run(self._core.admin.cluster(latest=latest))

    def stats(self, server: str | None = None) -> dict[str, float]:
        """Return the metrics of the broker at `server`, by name; by default of any broker."""
        return run(self._core.admin.stats(server))

    def bootstrap(self, addresses: Sequence[str]) -> ClusterInfo:
        """Make one cluster of empty brokers.

        >>> client.bootstrap(["127.0.0.1:7600", "127.0.0.1:7601", "127.0.0.1:7602"])
        """
        return run(self._core.admin.bootstrap(addresses))

    def add_broker(self, address: str) -> ClusterInfo:
        """Add an empty broker to this cluster."""
        return run(self._core.admin.add_broker(address))

    def remove_broker(self, node: int, *, force: bool = False) -> None:
        """Remove a broker from the cluster: its partitions move to the others first.

        It may be stopped when `cluster(latest=True)` does not name it any more. With `force`, even
        if partitions lose their last replica.
        """
        run(self._core.admin.remove_broker(node, force=force))

    def replace_broker(self, node: int) -> None:
        """Accept the empty data directory of a broker that lost its data in the old one's place."""
        run(self._core.admin.replace_broker(node))

    def upgrade_cluster(self, to: int | None = None, *, dry_run: bool = False) -> UpgradeInfo:
        """Raise the feature level, by default to the highest that all brokers know. No way back."""
        return run(self._core.admin.upgrade_cluster(to, dry_run=dry_run))

    def rebalance(self, *, leaders_only: bool = False) -> RebalanceInfo:
        """Begin to spread partitions and leaders evenly; `rebalance_status` tells the progress."""
        return run(self._core.admin.rebalance(leaders_only=leaders_only, status_only=False))

    def rebalance_status(self) -> RebalanceInfo:
        """Return the progress of a rebalance."""
        return run(self._core.admin.rebalance(leaders_only=False, status_only=True))

    def transfer(self, topic: str | None, partition: int = 0, *, to: int) -> None:
        """Make node `to` the leader of a partition; with topic None, of the cluster's metadata."""
        run(self._core.admin.transfer(topic, partition, to))
