"""The bindings of queues to exchanges, kept in the cluster, so that all processes share them.

An exchange is a topic without messages, and each of its bindings a group of that topic: groups are
replicated, listed, created and deleted one by one.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from quivermq.client import Client
from quivermq.errors import InvalidRequest, TopicExists, TopicNotFound
from quivermq.integrations.kombu.names import Binding, TopicNames

CACHE_SECONDS: Final = 1.0
"""A binding that another process made counts after so long, unless nothing matched before."""


class BindingTable:
    """The bindings of all exchanges of a virtual host."""

    def __init__(
        self, client: Client, names: TopicNames, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._names = names
        self._now = now
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[float, list[Binding]]] = {}

    def bind(self, exchange: str, binding: Binding) -> None:
        """Add a binding; to add it again changes nothing."""
        topic = self._names.exchange(exchange)
        try:
            self._client.commit(topic, binding.group, 0, 0)
        except TopicNotFound:
            create_plain(self._client, topic)
            self._client.commit(topic, binding.group, 0, 0)
        self._forget(exchange)

    def unbind(self, exchange: str, binding: Binding) -> None:
        """Remove a binding, if there is one."""
        remove_group(self._client, self._names.exchange(exchange), binding.group)
        self._forget(exchange)

    def drop(self, exchange: str) -> None:
        """Remove an exchange with all its bindings."""
        with suppress(TopicNotFound):
            self._client.delete_topic(self._names.exchange(exchange))
        self._forget(exchange)

    def of_exchange(self, exchange: str, *, fresh: bool = False) -> list[Binding]:
        """All bindings of an exchange; without `fresh`, as they were a moment ago."""
        with self._lock:
            until, known = self._cached.get(exchange, (0.0, []))
        if not fresh and self._now() < until:
            return known
        found = [
            binding
            for name in group_names(self._client, self._names.exchange(exchange))
            if (binding := Binding.of_group(name)) is not None
        ]
        with self._lock:
            self._cached[exchange] = (self._now() + CACHE_SECONDS, found)
        return found

    def _forget(self, exchange: str) -> None:
        with self._lock:
            self._cached.pop(exchange, None)


def group_names(client: Client, topic: str) -> list[str]:
    """The groups of a topic that may not exist."""
    try:
        return [group.name for group in client.groups(topic)]
    except TopicNotFound:
        return []


def create_plain(client: Client, topic: str) -> None:
    """Create a topic that holds groups only, unless it exists."""
    with suppress(TopicExists):
        client.create_topic(topic, partitions=1)


def remove_group(client: Client, topic: str, group: str) -> None:
    """Delete a group that may not exist, of a topic that may not."""
    with suppress(TopicNotFound, InvalidRequest):
        client.delete_group(topic, group)
