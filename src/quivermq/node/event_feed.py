"""Tells what happens in the cluster, in the topic `_events`: each event once, by who saw it.

The broker that comes to lead a partition tells so; the leader of the metadata partition tells how
the catalog changed, and which brokers it does not hear; every broker tells of its own disks,
certificates and refusals. Nothing waits for its event, or fails with it (`SystemTopic`). Events
that come too fast are counted, and the count is told. Requests that are refused are counted anyway,
and told every few seconds.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from quivermq.cluster import View, changes_between, node_of
from quivermq.events import EVENTS_TOPIC, Event
from quivermq.moments import format_moment
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.system_topic import Call, SystemTopic
from quivermq.node.tasks import end_tasks
from quivermq.queue import TopicSettings
from quivermq.token_bucket import TokenBucket

logger = logging.getLogger("quivermq.events")

_SETTINGS: Final = TopicSettings(retention_ms=7 * 24 * 3600 * 1000, retention_bytes=64 << 20)
_PER_SECOND: Final = 10
_BURST: Final = 100
"""Of one kind."""
_LOOK_S: Final = 1.0
_REFUSALS_S: Final = 10.0
_SETTLED_S: Final = 2.0
"""A cluster without topics to which no broker came for so long is complete, most likely."""
_DETAIL_CHARACTERS_MAX: Final = 2_000
_CLOSE_S: Final = 0.3
"""Brokers that stop together can store nothing any more, and must not wait for each other."""
_REPEATED_S: Final = 60.0
_REPEATED_MAX: Final = 1_000
_REPEATING: Final = frozenset(
    {"disk_full", "disk_trouble", "replica_damaged", "replica_stopped", "certificates_refused"}
)
"""An attempt that is repeated fails again: told once a minute in the same words."""


@dataclass(frozen=True, slots=True)
class FeedParts:
    """The parts of a broker that the feed looks at."""

    node_id: int
    metadata: Metadata
    call: Call
    now_ms: Callable[[], int]
    is_alive: Callable[[int], bool]
    refusals: Counter[str]
    """By code, since the start."""
    findings: Callable[[], list[str]]
    """The faults found in the data directory since it was last asked."""


class EventFeed:
    """The events of one broker on their way into the topic."""

    def __init__(self, parts: FeedParts) -> None:
        self._parts = parts
        self._metadata = parts.metadata
        self._loop = asyncio.get_running_loop()
        self._start = token_hex(4)
        self._number = 0
        self._buckets: dict[str, TokenBucket] = {}
        self._left_out: Counter[str] = Counter()
        self._repeated: dict[tuple[object, ...], float] = {}
        self._view = View()
        self._silent: set[int] = set()
        """The brokers that are not heard, as far as that was told."""
        self._brokers: frozenset[int] = frozenset()
        self._changed_at = self._loop.time()
        self._refused = Counter(parts.refusals)
        self._refused_at = self._loop.time()
        self._topic = SystemTopic(
            EVENTS_TOPIC, _SETTINGS, parts.metadata, parts.call, self._is_wanted
        )
        self._task = asyncio.create_task(self._keep_looking(), name="event feed")

    # Telling.

    def tell(self, kind: str, detail: str, **fields: Any) -> None:
        """Something happened: `fields` are those of an `Event`."""
        now_s = self._loop.time()
        if kind in _REPEATING and self._is_repeated((kind, detail, *fields.items()), now_s):
            return
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = TokenBucket(_PER_SECOND, _BURST, now_s)
        if not bucket.take(1, now_s) or not self._add(kind, detail, fields):
            self._left_out[kind] += 1

    def _is_repeated(self, words: tuple[object, ...], now_s: float) -> bool:
        if self._repeated.get(words, 0.0) > now_s:
            return True
        if len(self._repeated) >= _REPEATED_MAX:
            self._repeated.clear()
        self._repeated[words] = now_s + _REPEATED_S
        return False

    def _add(self, kind: str, detail: str, fields: dict[str, Any]) -> bool:
        """False: too many wait to be stored."""
        self._number += 1
        node = self._parts.node_id
        event = Event(
            time=format_moment(self._parts.now_ms()),
            kind=kind,
            detail=detail[:_DETAIL_CHARACTERS_MAX],
            told_by=node,
            id=f"{node}-{self._start}-{self._number}",
            **{"broker": node, **fields},
        )
        return self._topic.add(json.dumps(event.to_json()).encode())

    @property
    def waiting(self) -> int:
        """Events that are not stored yet."""
        return self._topic.waiting

    # What is seen here.

    def leadership_changed(self, hosted: HostedReplica) -> None:
        """A replica leads, or does not any more; who leads tells it."""
        if hosted.is_metadata:
            # Another leader may have seen who is silent, or whether the topic is there.
            self._topic.look()
        if hosted.was_serving:
            name, term = hosted.name, hosted.replica.term
            text = f"broker {self._parts.node_id} leads {name} in term {term}"
            self.tell("leader_changed", text, topic=name.topic, partition=name.partition)

    def trouble(self, hosted: HostedReplica, kind: str, detail: str) -> None:
        """A replica of this broker is not well, or is well again."""
        self.tell(kind, detail, topic=hosted.name.topic, partition=hosted.name.partition)

    def catalog_changed(self) -> None:
        """The catalog has another version. Its leader tells what is in it."""
        before, self._view = self._view, self._metadata.view
        if _id_of(before) and _id_of(before) != _id_of(self._view):
            # It gave up the cluster that it was alone in, and joined another.
            self._topic.forget()
            before = View()
        brokers = frozenset(self._view.brokers)
        if brokers != self._brokers:
            self._brokers, self._changed_at = brokers, self._loop.time()
        if self._metadata.is_leader:
            for change in changes_between(before, self._view):
                fields = change._asdict()
                self.tell(fields.pop("kind"), fields.pop("detail"), **fields)
        self._topic.look()

    # What is looked for.

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self._look()
            except Exception:
                logger.exception("the event feed failed, and goes on")

    def _look(self) -> None:
        self._look_for_brokers()
        for finding in self._parts.findings():
            self.tell("directory_damaged", finding)
        if self._loop.time() - self._refused_at >= _REFUSALS_S:
            self._tell_refusals()
        if self._left_out:
            counts = dict(self._left_out)
            text = f"too many at once, not told: {_counted(counts)}"
            if self._add("events_left_out", text, {"counts": counts}):
                self._left_out.clear()
        self._topic.look()

    def _look_for_brokers(self) -> None:
        """The leader of the cluster tells. If it is the one that is lost, the next leader does: the
        others remember, until then, what was told before."""
        brokers, is_alive = self._view.brokers, self._parts.is_alive
        silent = {node for node in brokers if not is_alive(node)}
        leader = self._metadata.leader
        if self._metadata.is_leader:
            for node in sorted(silent - self._silent):
                self.tell("broker_lost", f"broker {node} is not heard any more", broker=node)
            for node in sorted(self._silent & brokers.keys() - silent):
                self.tell("broker_back", f"broker {node} is heard again", broker=node)
        elif leader in (0, self._parts.node_id) or leader in silent:
            return
        self._silent = silent

    def _tell_refusals(self) -> None:
        now_s, refusals = self._loop.time(), self._parts.refusals
        seconds, self._refused_at = now_s - self._refused_at, now_s
        counts = dict(sorted((refusals - self._refused).items()))
        if counts:
            self._refused = Counter(refusals)
            text = f"refused in {seconds:.0f} s: {_counted(counts)}"
            self.tell("refusals", text, counts=counts)

    # The topic.

    def _is_wanted(self, view: View) -> bool:
        """Not before there is something to tell of: a broker that is alone and holds nothing can
        still join another. Nor before all founders are there, or it would have too few replicas."""
        if view.topics.keys() - {EVENTS_TOPIC}:
            return True
        is_settled = self._loop.time() - self._changed_at > _SETTLED_S
        hosted = self._metadata.hosted
        if len(view.brokers) < 2 or not is_settled or hosted is None:
            return False
        voters = {node_of(member) for member in hosted.replica.configuration.voters}
        return voters <= view.brokers.keys()

    async def close(self) -> None:
        """Store what has gathered, if that is quick."""
        await end_tasks(self._task)
        with suppress(Exception):
            self._tell_refusals()
        await self._topic.close(_CLOSE_S)


def _id_of(view: View) -> str:
    return view.cluster.id if view.cluster is not None else ""


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
