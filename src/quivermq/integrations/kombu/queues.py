"""Queues as topics: declared, measured, emptied and deleted; those that expire are swept away."""

import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from quivermq.client import Client, Retention
from quivermq.errors import InvalidRequest, QuiverError, TopicExists, TopicNotFound
from quivermq.integrations.kombu.bindings import create_plain, group_names, remove_group
from quivermq.integrations.kombu.names import GROUP, TopicNames, group_of_queue, queue_of_group

logger = logging.getLogger("quivermq.kombu")

MAX_DELIVERIES: Final = 20
"""As quorum queues of RabbitMQ have it."""

_SWEPT_MAX: Final = 8
_PURGED_AT_ONCE: Final = 10_000
_EXPIRY_SECONDS_MIN: Final = 10.0
_TTL_SECONDS_MIN: Final = 60.0


class QueueOptions(NamedTuple):
    """The transport options that shape topics."""

    partitions: int = 1
    replication: int | None = None
    max_deliveries: int = MAX_DELIVERIES

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "QueueOptions":
        """Those of `broker_transport_options`."""
        return cls(**{name: options[name] for name in cls._fields if name in options})


class Queues:
    """The queues of a virtual host."""

    def __init__(self, client: Client, names: TopicNames, options: QueueOptions) -> None:
        self._client = client
        self._names = names
        self._options = options
        self._declared: dict[str, Mapping[str, Any]] = {}

    def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Create the topic of a queue, unless it exists."""
        expires_ms = arguments.get("x-expires")
        topic = self._names.queue(queue)
        with suppress(TopicExists):  # somebody has altered it
            self._client.create_topic(
                topic,
                partitions=self._options.partitions,
                replication=self._options.replication,
                retention=Retention(max_age=_max_age(arguments), delete_acked=True),
                max_deliveries=self._options.max_deliveries,
                # A group that is made anew would get again what is acknowledged and still kept.
                group_idle_retention=_idle_seconds(expires_ms),
            )
        self._declared[queue] = dict(arguments)
        if expires_ms is not None:
            self._expect_expiry(queue, topic)

    def declare_again(self, queue: str) -> bool:
        """Create a queue again that this process declared, and another deleted; False: it did not
        declare it."""
        if queue not in self._declared:
            return False
        self.declare(queue, self._declared[queue])
        return True

    def exists(self, queue: str) -> bool:
        """Whether somebody has declared it."""
        try:
            self._client.topic(self._names.queue(queue))
        except TopicNotFound:
            return False
        return True

    def message_ttl_ms(self, queue: str) -> int | None:
        """The time to live that this process declared for messages of a queue."""
        found = self._declared.get(queue, {}).get("x-message-ttl")
        return None if found is None else int(found)

    def size(self, queue: str) -> int:
        """Messages that wait to be delivered, now or after their delay."""
        topic = self._names.queue(queue)
        try:
            found = [group for group in self._client.groups(topic) if group.name == GROUP]
            if found:
                return found[0].lag + found[0].delayed
            return self._client.topic(topic).message_count or 0
        except TopicNotFound:
            return 0

    def purge(self, queue: str) -> int:
        """Drop all messages that wait, now or after their delay; returns how many."""
        topic = self._names.queue(queue)
        try:
            count = self._cancel_delayed(topic)
            while taken := self._client.poll_arrow(
                topic, GROUP, _PURGED_AT_ONCE, wait=0.0, ack="auto"
            ).table.num_rows:
                count += taken
        except TopicNotFound:
            return 0
        return count

    def delete(self, queue: str) -> None:
        """Delete a queue with everything in it."""
        self._declared.pop(queue, None)
        with suppress(TopicNotFound):
            self._client.delete_topic(self._names.queue(queue))
        remove_group(self._client, self._names.expiring, group_of_queue(queue))

    def _cancel_delayed(self, topic: str) -> int:
        count = 0
        while found := self._client.delayed(topic, _PURGED_AT_ONCE):
            offsets: dict[int, list[int]] = {}
            for each in found:
                offsets.setdefault(each.partition, []).append(each.offset)
            cancelled = sum(
                self._client.cancel_delayed(topic, partition, some)
                for partition, some in offsets.items()
            )
            if not cancelled:
                break  # all of them have become due
            count += cancelled
        return count

    def _expect_expiry(self, queue: str, topic: str) -> None:
        """The broker deletes the group of a queue that is not polled, and by that its expiry
        shows: so the group must exist before the queue is listed."""
        self._client.release(self._client.poll(topic, GROUP, 1, wait=0.0))
        group = group_of_queue(queue)
        try:
            self._client.commit(self._names.expiring, group, 0, 0)
        except TopicNotFound:
            create_plain(self._client, self._names.expiring)
            self._client.commit(self._names.expiring, group, 0, 0)
        self._sweep(group)

    def _sweep(self, but: str) -> None:
        """Delete some of the queues that have expired. Adding one looks after a few, so their
        number stays bounded without a timer."""
        listed = [name for name in group_names(self._client, self._names.expiring) if name != but]
        for name in random.sample(listed, min(len(listed), _SWEPT_MAX)):
            queue = queue_of_group(name)
            try:
                if GROUP not in group_names(self._client, self._names.queue(queue)):
                    self.delete(queue)
            except QuiverError as error:
                logger.debug("queue %r was not looked after: %s", queue, error)


def _idle_seconds(expires_ms: float | None) -> float | None:
    # Polls that wait are repeated every few seconds only.
    return None if expires_ms is None else max(_EXPIRY_SECONDS_MIN, expires_ms / 1000)


def _max_age(arguments: Mapping[str, Any]) -> float | None:
    # A bound on disk space; consumers tell exactly what is too old.
    ttl_ms = arguments.get("x-message-ttl")
    if ttl_ms is not None and ttl_ms < 0:
        raise InvalidRequest(f"x-message-ttl must not be negative: {ttl_ms!r}")
    return None if ttl_ms is None else max(_TTL_SECONDS_MIN, ttl_ms / 1000)
