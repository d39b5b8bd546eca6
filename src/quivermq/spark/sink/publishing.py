"""Commits a batch in the driver: decides which staged rows count, then copies them to their topics.

Several drivers may publish the same decision, one after the other or at the same time. They copy
the same batches under the same producer, epoch and sequence numbers, and brokers store each number
once. A driver that takes over asks each partition for its position and continues there; it sends
the last batch again, because only its answer says that everything up to there is stored.

A partition that has had thousands of producers since has forgotten this one. The driver looks for
the decision among the partition's batches, and publishes the rest under a new epoch when all other
partitions are complete. After 20 hours it does so for all partitions: a driver that was suspended
for so long publishes nothing more.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import quivermq
from quivermq.client import BatchCache
from quivermq.errors import (
    Fenced,
    InvalidRequest,
    OffsetOutOfRange,
    OutOfSequence,
    Timeout,
    TopicNotFound,
)
from quivermq.spark.checkpoints import check_plan, plan_of
from quivermq.spark.sink.decisions import Decision, DecisionLog, producer_of
from quivermq.spark.sink.staged_runs import (
    Run,
    Staged,
    TargetPartition,
    join_staged,
    last_batch_size,
    spans_of,
    split_runs,
)
from quivermq.spark.sink.staging import PUBLISHED_GROUP, staging_topic

THREADS_MAX: Final = 4
"""Partitions that are published to at the same time."""
PIECE_BATCHES: Final = 256
"""Batches of one copy request; between two, the driver checks the age of the decision."""
REMEMBERED_SECONDS: Final = 20 * 3600
"""An older decision is not continued by position: its messages are looked for."""
CLOCKS_DIFFER_MS: Final = 3600 * 1000
"""How far the clock of a target's leader may be behind that of the decision's leader."""
HELD_BYTES_MAX: Final = 32 << 20
_RUNS_MAX: Final = 8
"""More runs than this are fetched at once, up to `HELD_BYTES_MAX`."""
_TRIES: Final = 3
_RELEASE_BATCHES: Final = 32
"""The staged rows of so many batches are released at once; fewer, with every eighth decision."""
_RELEASE_EVERY: Final = 8


class BatchCommitter:
    """Commits the batches of one query when all tasks have staged their rows.

    The driver may die at any point. A driver that commits the batch again has the same result.
    """

    def __init__(
        self, client: quivermq.Client, query: str, checkpoint_location: str | None
    ) -> None:
        self.client = client
        self.query = query
        self._location = checkpoint_location

    def commit(
        self,
        batch: int,
        parts: Sequence[Mapping[TargetPartition, tuple[Run, ...]]],
        stage: str | None = None,
    ) -> None:
        """Commit a batch of staged rows; `stage` names the staging topic, by default the query's.

        Decisions are published in order, those of other drivers too: brokers refuse rows of one
        after rows of the next.
        """
        staged = join_staged(parts)
        log = DecisionLog.open(self.client, self.query, create=bool(staged))
        if log is None:
            return  # the query has never had rows
        decision = log.of(batch)
        if decision is None:
            decision = log.decide(batch, staged, plan_of(self._location, batch), stage)
        check_plan(self._location, batch, decision.plan, f"the topics of query {self.query}")
        for earlier in log.unpublished(before=decision.offset):
            self.publish(log, earlier)
        self.publish(log, decision)

    def publish(self, log: DecisionLog, decision: Decision) -> None:
        """Publish a decision."""
        publish(self.client, log, decision)


def publish(client: quivermq.Client, log: DecisionLog, decision: Decision) -> None:
    """Publish a decision, or the rest of it; returns when all of it is stored."""
    if decision.is_published:
        return
    if _age(decision) > REMEMBERED_SECONDS:
        targets = log.staged_of(decision)
        decision = log.resume(decision, _count_all_stored(client, log, decision, targets))
        if decision.is_published:
            return
    try:
        staged = left = log.staged_of(decision)
        while forgetful := Publisher(client, log.producer_id, decision).publish_all(left):
            found = {target: _count_messages(runs) for target, runs in left.items()}
            found |= _count_all_stored(client, log, decision, forgetful)
            decision = log.resume(decision, found)
            if decision.is_published:
                return
            left = log.staged_of(decision)
    except (Fenced, TopicNotFound, OffsetOutOfRange, InvalidRequest):
        # Another driver may have published it to its end, and gone on.
        log.read()
        if decision.is_published:
            return
        raise
    log.note_published(decision)
    _release(client, log.query, decision, staged)


def _release(client: quivermq.Client, query: str, decision: Decision, staged: Staged) -> None:
    """Let brokers drop the staged rows of a published decision."""
    topic = staging_topic(decision.stage)
    if decision.stage != query:
        with suppress(TopicNotFound):
            client.delete_topic(topic)
        return
    batches = sum(len(run.counts) for runs in staged.values() for run in runs)
    if batches >= _RELEASE_BATCHES or decision.batch % _RELEASE_EVERY == 0:
        for partition, _, end in spans_of(staged):
            client.commit(topic, PUBLISHED_GROUP, partition, end)


def publish_once(client: quivermq.Client, stage: str, staged: Staged) -> None:
    """Publish staged rows without a decision: no other driver can repeat this write."""
    decision = Decision(0, 0, int(time.time() * 1000), None, "", stage, is_own=True)
    if forgetful := Publisher(client, producer_of(stage), decision).publish_all(staged):
        raise Timeout(f"{forgetful} have forgotten how much they stored: the write is not complete")


def _count_all_stored(
    client: quivermq.Client,
    log: DecisionLog,
    decision: Decision,
    targets: Iterable[TargetPartition],
) -> dict[TargetPartition, int]:
    """Count the stored messages of a decision in partitions that may have forgotten it."""
    return {target: _count_stored(client, log.producer_id, decision, target) for target in targets}


def _count_stored(
    client: quivermq.Client, producer_id: int, decision: Decision, target: TargetPartition
) -> int:
    since_ms = max(0, decision.timestamp_ms - CLOCKS_DIFFER_MS)
    return client.stored(*target, producer_id=producer_id, epoch=decision.epoch, since_ms=since_ms)


def _count_messages(runs: Iterable[Run]) -> int:
    return sum(sum(run.counts) for run in runs)


def _age(decision: Decision) -> float:
    return time.time() - decision.timestamp_ms / 1000


class _ForgottenError(Exception):
    """A partition holds part of a decision, and has forgotten its position."""


class Publisher:
    """Copies the rows of one decision."""

    def __init__(self, client: quivermq.Client, producer_id: int, decision: Decision) -> None:
        self._client = client
        self._topic = staging_topic(decision.stage)
        self._producer_id = producer_id
        self._decision = decision
        self._held: BatchCache | None = None

    def publish_all(self, staged: Staged) -> list[TargetPartition]:
        """Publish everything, to some partitions at a time. Returns those that hold part of it and
        have forgotten their position."""
        if not staged:
            return []
        try:
            return self._publish_all(staged)
        except OffsetOutOfRange as error:
            raise InvalidRequest(
                f"rows of batch {self._decision.batch} were staged but not published in time, and "
                f"are dropped ({error}). Start with a fresh checkpoint, behind what is published"
            ) from error
        except Fenced as error:
            raise Fenced(
                f"another driver of this query has published rows after batch "
                f"{self._decision.batch}: run one driver at a time ({error})"
            ) from error

    def _publish_all(self, staged: Staged) -> list[TargetPartition]:
        if sum(len(runs) for runs in staged.values()) > _RUNS_MAX:
            self._held = self._client.hold(self._topic, spans_of(staged), bytes_max=HELD_BYTES_MAX)
        with ThreadPoolExecutor(min(THREADS_MAX, len(staged)), "publishing") as threads:
            try:
                begun = [threads.submit(self.publish, *each) for each in staged.items()]
                known = [done.result() for done in begun]
            except BaseException:
                # The first failure decides: do not wait for a thousand other partitions.
                threads.shutdown(wait=True, cancel_futures=True)
                raise
        return [target for target, is_known in zip(staged, known, strict=True) if not is_known]

    def publish(self, target: TargetPartition, runs: tuple[Run, ...]) -> bool:
        """Publish everything for one partition; False if it has forgotten its position."""
        try:
            self._publish(target, runs)
        except _ForgottenError:
            return False
        return True

    def _publish(self, target: TargetPartition, runs: tuple[Run, ...]) -> None:
        skipped = 0 if self._decision.is_own else self._position(target, runs)
        for tries_left in reversed(range(_TRIES)):
            try:
                self._copy(target, runs, skipped)
            except (Timeout, OutOfSequence, InvalidRequest):
                # The position is unknown, or another driver was faster.
                if not tries_left:
                    raise
                skipped = self._position(target, runs)
            else:
                return

    def _copy(self, target: TargetPartition, runs: tuple[Run, ...], skipped: int) -> None:
        for number, piece in split_runs(runs, skipped, PIECE_BATCHES):
            self._check_clock()
            self._client.copy(
                self._topic,
                [(run.partition, run.start, run.stop) for run in piece],
                target.topic,
                partition=target.partition,
                producer_id=self._producer_id,
                epoch=self._decision.epoch,
                sequence=number,
                held=self._held,
            )

    def _position(self, target: TargetPartition, runs: tuple[Run, ...]) -> int:
        """The number of messages to skip: all stored ones without the last batch."""
        self._check_clock()
        try:
            taken = self._client.position(
                target.topic,
                target.partition,
                producer_id=self._producer_id,
                epoch=self._decision.epoch,
            )
        except OutOfSequence as error:
            # The partition has forgotten producers, perhaps this one.
            if _count_stored(self._client, self._producer_id, self._decision, target):
                raise _ForgottenError from error
            return 0
        return taken - last_batch_size(runs, taken)

    def _check_clock(self) -> None:
        age = _age(self._decision)
        if age > REMEMBERED_SECONDS:
            raise Timeout(
                f"batch {self._decision.batch} was decided {age / 3600:.0f} hours ago and is not "
                "published completely: start the query again, which publishes the rest"
            )
