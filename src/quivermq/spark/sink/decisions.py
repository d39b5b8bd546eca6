"""Decides which staged rows of a batch count: a log of decisions, of which the first one holds.

A query has a topic `_spark.<query>` of one partition. A driver that wants to commit batch N appends
what its tasks staged for it. The log has one order for all drivers, and in it

    the first decision for a batch holds, unless a later batch was decided before it.

So of two drivers at once, of a driver and its successor, of a commit and its replay, exactly one
decision holds, and each of them finds out which by reading up to its own. A decision that does not
hold is as if it were not there: what was staged for it is never published.

When all of a decision is published, the driver notes that in the same log. A driver that resumes so
late that brokers have forgotten the producer notes how much of the decision they hold.
"""

import base64
import json
import secrets
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import quivermq
from quivermq.errors import InvalidRequest, Timeout, TopicNotFound
from quivermq.spark.sink.staged_runs import (
    Staged,
    TargetPartition,
    pack_staged,
    skip_messages,
    unpack_staged,
)
from quivermq.spark.sink.staging import PUBLISHED_GROUP, decisions_topic, staging_topic

REMEMBERED: Final = 16
"""Batches that a checkpoint may be rolled back by."""
INLINE_BYTES_MAX: Final = 1 << 20
"""A longer list of staged rows is not part of the decision, but staged like rows."""
PIECE_BYTES: Final = 4 << 20
_SHOWN_SECONDS: Final = 30.0
_LOOK_AGAIN_SECONDS: Final = 0.05


@dataclass(slots=True)
class Decision:
    """The decision that holds for one batch."""

    batch: int
    offset: int
    """Its offset in the log, or that of its last resumption."""
    timestamp_ms: int
    """When the broker stored the record at `offset`."""
    plan: str | None
    """The plan of the batch in the checkpoint."""
    token: str
    """Unique for each record."""
    stage: str
    """Names the staging topic of its rows."""
    staged_at: tuple[int, ...] = ()
    """The offsets of its staged list; empty: `staged` has the list."""
    staged: Staged = field(default_factory=dict)
    done: dict[TargetPartition, int] = field(default_factory=dict)
    """By target, the messages that were stored before it was resumed."""
    place: int = 0
    """Its own offset in the log."""
    is_published: bool = False
    is_own: bool = False
    """This process decided it, so no other has begun to publish it."""

    @property
    def epoch(self) -> int:
        """The producer epoch of its messages: a later decision has a higher one."""
        return self.offset + 1


class DecisionLog:
    """The decisions of one query, as far as this process has read them."""

    def __init__(self, client: quivermq.Client, query: str, topic_id: str) -> None:
        self.query = query
        self.last_batch = -1
        self.producer_id = producer_of(topic_id)
        """The producer of all published messages; another one if the log was deleted."""
        self._client = client
        self._topic = decisions_topic(query)
        self._floor = 0
        self._next_offset: int | None = None
        self._known: dict[int, Decision] = {}

    @classmethod
    def open(cls, client: quivermq.Client, query: str, *, create: bool) -> "DecisionLog | None":
        """The decisions of a query; None if there is no log and `create` is false."""
        name = decisions_topic(query)
        try:
            topic = client.topic(name)
        except TopicNotFound:
            if not create:
                return None
            retention = quivermq.Retention(delete_acked=True)
            topic = client.create_topic(name, partitions=1, retention=retention)
        log = cls(client, query, topic.id)
        log.read()
        return log

    def of(self, batch: int) -> Decision | None:
        """The decision for a batch; None if there is none, or it is too old."""
        return self._known.get(batch)

    def unpublished(self, before: int | None = None) -> list[Decision]:
        """The decisions that are not noted as published, below the offset `before` if given."""
        left = [
            each
            for each in self._known.values()
            if not each.is_published and (before is None or each.offset < before)
        ]
        return sorted(left, key=lambda each: each.offset)

    def decide(
        self, batch: int, staged: Staged, plan: str | None, stage: str | None = None
    ) -> Decision:
        """Decide a batch; returns the decision that holds, which may be another driver's."""
        self._check_age(batch)
        token, stage = secrets.token_hex(8), stage or self.query
        record: dict[str, Any] = {"decided": batch, "token": token, "plan": plan, "stage": stage}
        listed = pack_staged(staged)
        if len(listed) <= INLINE_BYTES_MAX:
            record["staged"] = base64.b85encode(listed).decode()
        else:
            record["staged_at"] = self._stage_list(listed, stage)
        stored = self._client.produce(self._topic, _pack(record), partition=0)
        self._read_through(stored.offset)
        self._check_age(batch)
        decision = self._known[batch]
        decision.is_own = decision.token == token
        return decision

    def resume(self, decision: Decision, done: Mapping[TargetPartition, int]) -> Decision:
        """Note the messages that are stored of a decision; the rest is published under a new epoch.

        Of several drivers that resume it at once, the first one holds.
        """
        found = [[*target, count] for target, count in done.items()]
        record = {"resumed": decision.batch, "decision": decision.offset, "done": found}
        stored = self._client.produce(self._topic, _pack(record), partition=0)
        self._read_through(stored.offset)
        return decision

    def note_published(self, decision: Decision) -> None:
        """Note that all of a decision is published."""
        record = {"published": decision.batch, "decision": decision.offset}
        self._client.produce(self._topic, _pack(record), partition=0)
        decision.is_published = True
        decision.staged = {}
        oldest = min(each.place for each in self._known.values())
        if oldest - self._floor >= 2 * REMEMBERED:
            # The next driver reads from there, and brokers may drop older records.
            self._client.commit(self._topic, PUBLISHED_GROUP, 0, oldest)
            self._floor = oldest

    def staged_of(self, decision: Decision) -> Staged:
        """The staged rows that a decision publishes; read from the topic if its list is staged."""
        staged = decision.staged
        if decision.staged_at:
            topic = staging_topic(decision.stage)
            found = [list(self._client.read(topic, 0, at, at + 1)) for at in decision.staged_at]
            staged = unpack_staged(b"".join(message.value for piece in found for message in piece))
        left = {
            target: skip_messages(runs, decision.done.get(target, 0))
            for target, runs in staged.items()
        }
        return {target: runs for target, runs in left.items() if runs}

    def read(self, up_to: int | None = None) -> None:
        """Read on, up to an offset or to the end."""
        start = self._next_offset
        if start is None:
            committed = self._client.committed(self._topic, PUBLISHED_GROUP).get(0, 0)
            # A driver that was suspended may have committed an older offset, which is dropped now.
            kept = self._client.offsets(self._topic).partitions[0].start
            start = self._floor = max(committed, kept)
        reader = self._client.read(self._topic, 0, start, stop=up_to)
        self._next_offset = start
        for message in reader:
            self._take(json.loads(zlib.decompress(message.value)), message)
            self._next_offset = message.offset + 1

    def _read_through(self, offset: int) -> None:
        """Read up to a stored record. A new leader may not show it at once."""
        deadline = time.monotonic() + _SHOWN_SECONDS
        while True:
            self.read(up_to=offset + 1)
            if (self._next_offset or 0) > offset:
                return
            if time.monotonic() > deadline:
                raise Timeout(f"{self._topic} does not show what it stored at offset {offset}")
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _take(self, record: Mapping[str, Any], message: quivermq.Message) -> None:
        if "decided" not in record:
            for each in self._known.values():
                if each.offset == record["decision"]:
                    _apply_record(each, record, message)
            return
        batch = record["decided"]
        if batch <= self.last_batch:
            return  # another driver decided it before
        self.last_batch = batch
        places = record.get("staged_at", [])
        self._known[batch] = Decision(
            batch=batch,
            offset=message.offset,
            timestamp_ms=message.timestamp,
            place=message.offset,
            plan=record["plan"],
            token=record["token"],
            stage=record["stage"],
            staged_at=tuple(places),
            staged={} if places else unpack_staged(base64.b85decode(record["staged"])),
        )
        if len(self._known) > REMEMBERED:
            oldest = min(self._known)
            if self._known[oldest].is_published:
                del self._known[oldest]

    def _check_age(self, batch: int) -> None:
        if batch <= self.last_batch and batch not in self._known:
            raise InvalidRequest(
                f"query {self.query} wants to write batch {batch}, but batch {self.last_batch} is "
                f"decided, and only the last {REMEMBERED} are remembered. A stream: its checkpoint "
                "is too old, use the newest one, or a fresh one to write everything again. A "
                "write with txnVersion: versions must grow"
            )

    def _stage_list(self, listed: bytes, stage: str) -> list[int]:
        pieces = [listed[at : at + PIECE_BYTES] for at in range(0, len(listed), PIECE_BYTES)]
        topic = staging_topic(stage)
        return [self._client.produce(topic, piece, partition=0).offset for piece in pieces]


def _apply_record(decision: Decision, record: Mapping[str, Any], message: quivermq.Message) -> None:
    """Apply a later record to a decision."""
    if "published" in record:
        decision.is_published, decision.staged = True, {}
    elif "resumed" in record:
        decision.offset, decision.timestamp_ms = message.offset, message.timestamp
        decision.is_own = False
        for topic, partition, count in record["done"]:
            target = TargetPartition(topic, partition)
            decision.done[target] = decision.done.get(target, 0) + count


def _pack(record: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(record, separators=(",", ":"), sort_keys=True).encode())


def producer_of(text: str) -> int:
    """A producer id for a name."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1 or 1
