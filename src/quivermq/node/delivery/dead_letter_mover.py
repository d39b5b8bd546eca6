"""Moves messages that failed too often to the dead-letter topic, and redrives them on request.

Messages that are dying stay with their partition until they are stored in the dead-letter topic,
and only then are done with. The leader of the partition moves them, as a producer whose id follows
from the partition and the group: the target recognises a repeat after a failover.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import Final, Protocol, TypeVar

from quivermq.batches import Frame, Limits
from quivermq.errors import (
    Fenced,
    InvalidRequest,
    OffsetOutOfRange,
    OutOfSequence,
    QuiverError,
    SequenceReused,
    StoredBefore,
    TooLarge,
    TopicExists,
    TopicNotFound,
)
from quivermq.intervals import IntervalSet, intervals_of, without
from quivermq.node.counters import Counters
from quivermq.node.delivery.dead_letter_batches import (
    BatchSource,
    DeadLetterBatches,
    Home,
    RedrivenBatches,
    StoredLetter,
    letters_of,
    producer_of,
)
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.handlers.fetch import FetchHandler
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer
from quivermq.node.tasks import end_tasks
from quivermq.queue import TO_GROUP, DyingMessages, Interval
from quivermq.wire import error_from_proto, proto

logger = logging.getLogger("quivermq.dead_letters")

T = TypeVar("T")


class BrokerCall(Protocol):
    """`Service.call`: a request to whichever broker answers it."""

    async def __call__(self, request: proto.Request, frames: Sequence[Frame] = ()) -> Answer: ...


_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
_REPORT_S: Final = 60.0
"""How often a trouble that lasts is reported."""
_PASSING_S: Final = 5.0
"""Leaders change: what is over by then is no trouble."""


class DeadLetterMovers:
    """The movers of all partitions that are led here and have something to move."""

    def __init__(
        self,
        partitions: PartitionLookup,
        fetching: FetchHandler,
        counters: Counters,
        limits: Limits,
        call: BrokerCall,
    ) -> None:
        self._partitions = partitions
        self._fetching = fetching
        self._counters = counters
        self._limits = limits
        self._call = call
        self._moving: dict[DeliveryDispatcher, asyncio.Task[None]] = {}
        self._watches: dict[DeliveryDispatcher, list[MoveWatch]] = {}
        self._is_closed = False

    def move(self, dispatcher: DeliveryDispatcher) -> None:
        """Move what is dying there, unless that is under way."""
        if dispatcher not in self._moving and not self._is_closed:
            task = asyncio.create_task(
                self._move(dispatcher), name=f"move dead letters of {dispatcher.hosted.name}"
            )
            self._moving[dispatcher] = task
            task.add_done_callback(lambda _: self._moved(dispatcher))

    def _moved(self, dispatcher: DeliveryDispatcher) -> None:
        del self._moving[dispatcher]
        if not self._is_closed:
            # A message may have begun to die that this move did not see.
            dispatcher.schedule_dispatch()

    async def _move(self, dispatcher: DeliveryDispatcher) -> None:
        mover = DeadLetterMover(self, dispatcher)
        wait_s = _FIRST_WAIT_S
        while not dispatcher.is_closed:
            try:
                # The lease manager names only what is committed, and this may not be yet.
                await dispatcher.commit_lease_ops(lambda _: None)
                records = dispatcher.hosted.with_leases(lambda leases: leases.dead_letters.dying())
                if not records:
                    return
                is_done = await mover.move_all(records)
            except QuiverError as error:
                mover.report(error)
                is_done = False
            except Exception:
                logger.exception("%s: its dead letters cannot be moved", dispatcher.hosted.name)
                is_done = False
            if is_done:
                wait_s = _FIRST_WAIT_S
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    @contextmanager
    def watch(self, dispatcher: DeliveryDispatcher) -> Iterator["MoveWatch"]:
        """Count the letters that are redriven from there meanwhile."""
        made = MoveWatch()
        watches = self._watches.setdefault(dispatcher, [])
        watches.append(made)
        try:
            yield made
        finally:
            watches.remove(made)
            if not watches:
                del self._watches[dispatcher]

    def tell_watches(self, dispatcher: DeliveryDispatcher, moved: int, stayed: int) -> None:
        for watch in self._watches.get(dispatcher, ()):
            watch.tell(moved, stayed)

    async def close(self) -> None:
        self._is_closed = True
        await end_tasks(*self._moving.values())

    # What a mover needs.

    async def batches(
        self, dispatcher: DeliveryDispatcher, record: DyingMessages
    ) -> AsyncIterator[Frame]:
        """Those that hold the messages of a record, a few at a time."""
        at = record.start
        while at < record.end:
            for frame in await self._fetching.read_on(dispatcher.hosted, at):
                if at < record.end:
                    yield frame
                    at = frame.header.next_offset

    async def in_thread(self, work: Callable[[Frame], T], frame: Frame) -> T:
        """Take a batch apart in a reader thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._fetching.readers, work, frame)

    @property
    def limits(self) -> Limits:
        return self._limits

    def count(self, source: BatchSource, messages: int) -> None:
        shares = self._counters.shares[source.topic, source.partition, source.group]
        shares.dead_lettered += messages

    async def store(self, topic: str, partition: int, frame: Frame) -> None:
        """Have a batch stored, here or elsewhere; raises the refusal."""
        known = self._partitions.topic(topic)
        number = partition % len(known.partitions)
        produce = proto.Produce(topic=topic, topic_id=bytes.fromhex(known.id), partition=number)
        await self._ask(proto.Request(produce=produce), [frame])

    async def revive(
        self, home: Home, group: str, redrive: int, letters: Sequence[StoredLetter]
    ) -> list[int]:
        """Let a group have the originals of letters again; returns the places of those letters
        that it has, or had, by this."""
        try:
            known = self._partitions.topic(home.topic)
            partition_id = self._partitions.partition_id(home.topic, b"", home.partition)
            letters = [letter for letter in letters if letter.is_of(partition_id)]
            if not letters:
                return []
            asked = proto.Revive(
                topic=home.topic,
                topic_id=bytes.fromhex(known.id),
                partition=home.partition,
                group=group,
                redrive=redrive,
                pieces=[
                    proto.RevivedPiece(start=letter.offset, count=1, priority=letter.priority)
                    for letter in letters
                ],
            )
            answer = await self._ask(proto.Request(revive=asked))
        except QuiverError as error:
            if error.retriable:
                raise
            logger.info("dead letters of %s stay: group %s: %s", home.topic, group, error)
            return []
        gone = IntervalSet((part.start, part.end) for part in answer.revived.gone)
        return [letter.place for letter in letters if letter.offset not in gone]

    async def find_or_make(self, source: BatchSource) -> str:
        """The dead-letter topic of a topic."""
        origin = self._partitions.topic(source.topic)
        # A name may have 200 characters.
        name = origin.topic_settings.dead_letter or f"{source.topic[:196]}.dlq"
        if name not in self._partitions.view.topics:
            creation = proto.CreateTopic(name=name, partitions=len(origin.partitions))
            with suppress(TopicExists):
                await self._ask(proto.Request(create_topic=creation))
            # It was made elsewhere; that it is known here takes a moment.
            await self._until_known(name)
        return name

    async def _until_known(self, name: str) -> None:
        for _ in range(100):
            if name in self._partitions.view.topics:
                return
            await asyncio.sleep(0.02)
        raise TopicNotFound(f"the topic {name!r} was made, but is not known here yet")

    async def _ask(self, request: proto.Request, frames: Sequence[Frame] = ()) -> proto.Response:
        response, _ = await self._call(request, frames)
        if response.WhichOneof("body") == "error":
            raise error_from_proto(response.error)
        return response


def _line_of(group: str, record: DyingMessages) -> str:
    """Records of one line are moved one after the other, and wait for those before."""
    if not record.redrive:
        return group
    # So a group remembers the last redrives, and none of longer ago is repeated.
    return TO_GROUP if record.reason == TO_GROUP else f"{TO_GROUP} {record.number}"


class MoveWatch:
    """Counts redriven letters for a request that waits for them."""

    def __init__(self) -> None:
        self._moved = 0
        self.stayed = 0
        """Letters that could not go where they were to go."""
        self._told = asyncio.Event()

    def tell(self, moved: int, stayed: int) -> None:
        self._moved += moved
        self.stayed += stayed
        self._told.set()

    async def until_moved(self, messages: int) -> None:
        """Wait until the mover is done with so many."""
        while self._moved < messages:
            self._told.clear()
            await self._told.wait()


class DeadLetterMover:
    """Moves the records of one partition, in order."""

    def __init__(self, movers: DeadLetterMovers, dispatcher: DeliveryDispatcher) -> None:
        self._movers = movers
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._reported_s = self._began_s - _REPORT_S

    async def move_all(self, records: list[tuple[str, DyingMessages]]) -> bool:
        """Whether all of them arrived. One that cannot be stored holds up its group alone, and a
        redrive that cannot only itself, or those to groups."""
        stuck: set[str] = set()
        is_done = True
        for group, record in records:
            if self._dispatcher.is_closed:
                return True
            line = _line_of(group, record)
            if line in stuck:
                continue
            try:
                if not await self._move(self._source(group), record):
                    # What follows has other numbers by this.
                    stuck.add(line)
            except OffsetOutOfRange:
                # Retention was faster: what is gone is counted as lost.
                self._dispatcher.trim()
                is_done = False
            except QuiverError as error:
                self.report(error)
                stuck.add(line)
                is_done = False
        return is_done

    def _source(self, group: str) -> BatchSource:
        name = self._dispatcher.hosted.name
        return BatchSource(self._dispatcher.hosted.id, name.topic, name.partition, group)

    def report(self, error: QuiverError) -> None:
        """A trouble that lasts is worth a line a minute."""
        now_s = self._loop.time()
        is_lasting = not error.retriable or now_s - self._began_s > _PASSING_S
        if is_lasting and now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            logger.warning(
                "%s: messages cannot be moved, and stay where they are: %s",
                self._dispatcher.hosted.name,
                error,
            )

    async def _move(self, source: BatchSource, record: DyingMessages) -> bool:
        """False: it has to be moved again, under another number."""
        kept: list[Interval] = []
        if record.redrive and record.reason == TO_GROUP:
            kept = await self._revive(source, record)
        elif record.redrive:
            kept = await self._redrive(source, record)
        elif not await self._store_record(source, record):
            return False
        dispatcher = self._dispatcher
        await dispatcher.commit_lease_ops(
            lambda leases: leases.dead_letters.bury(source.group, record.number, kept)
        )
        if record.redrive:
            stayed = sum(end - start for start, end in kept)
            self._movers.tell_watches(dispatcher, record.end - record.start, stayed)
        else:
            self._movers.count(source, record.end - record.start)
        return True

    async def _store_record(self, source: BatchSource, record: DyingMessages) -> bool:
        """Store a record among the dead letters; False if its numbers had to begin anew."""
        movers, dispatcher = self._movers, self._dispatcher
        topic = await movers.find_or_make(source)
        epoch = dispatcher.hosted.with_leases(
            lambda leases: leases.dead_letters.dead_epoch(source.group)
        )
        letters = DeadLetterBatches(source, record, topic, epoch, movers.limits)
        try:
            async for frame in movers.batches(dispatcher, record):
                await self._store_batch(letters, frame)
        except (OutOfSequence, Fenced, SequenceReused):
            # The target has forgotten this producer, knows a later one by its name, or has other
            # messages under this number: better twice than not at all.
            await dispatcher.commit_lease_ops(
                lambda leases: leases.dead_letters.restart_numbers(source.group)
            )
            return False
        return True

    async def _store_batch(self, letters: DeadLetterBatches, frame: Frame) -> None:
        try:
            for home, letter in await self._movers.in_thread(letters.all_of, frame):
                await self._store(home, letter)
        except TooLarge:
            # A message that just fits its limit does not with its story: better bare than stuck.
            for home, forms in letters.one_by_one(frame):
                await self._store_first_that_fits(home, forms)

    async def _store_first_that_fits(self, home: Home, forms: list[Frame]) -> None:
        *larger, smallest = forms
        for form in larger:
            with suppress(TooLarge):
                await self._store(home, form)
                return
        await self._store(home, smallest)

    async def _redrive(self, source: BatchSource, record: DyingMessages) -> list[Interval]:
        """Store a record where its messages came from; returns what stays dead, as there is no
        place for it. While that is all of it, it waits for its place."""
        batches = RedrivenBatches(source, record, self._movers.limits)
        troubles: dict[Home, QuiverError] = {}
        kept: list[Interval] = []
        stays = 0
        async for frame in self._movers.batches(self._dispatcher, record):
            for home, place, batch in await self._movers.in_thread(batches.all_of, frame):
                if home is not None and home not in troubles:
                    try:
                        await self._store(home, batch)
                    except QuiverError as error:
                        troubles[home] = error
                if home is None:
                    stays += batch.header.count
                if home is None or home in troubles:
                    # What follows has no place either: its numbers would have a gap.
                    kept.append(place)
        passing = [error for error in troubles.values() if error.retriable]
        is_all = sum(end - start for start, end in kept) == record.end - record.start
        if passing or (is_all and troubles):
            raise (passing or list(troubles.values()))[0]
        if stays:
            self.report(InvalidRequest(f"{stays} dead letters do not say where they came from"))
        return kept

    async def _revive(self, source: BatchSource, record: DyingMessages) -> list[Interval]:
        """Let the groups that failed have the messages of a record again; returns the letters that
        stay dead, as the original, the group or the topic is not there any more."""
        letters: list[StoredLetter] = []
        async for frame in self._movers.batches(self._dispatcher, record):
            take_apart = partial(letters_of, record=record, limits=self._movers.limits)
            letters += await self._movers.in_thread(take_apart, frame)
        # The last number of a record stays as it is, also if retention takes its beginning.
        redrive = producer_of(source, record.number + record.end - record.start)
        revived: list[int] = []
        letters.sort(key=lambda letter: (letter.home, letter.group))
        for (home, group), some in groupby(letters, key=lambda one: (one.home, one.group)):
            revived += await self._movers.revive(home, group, redrive, list(some))
        return without(
            [(record.start, record.end)], intervals_of(sorted(revived)) if revived else []
        )

    async def _store(self, home: Home, frame: Frame) -> None:
        # So long ago that the target forgot the place: it is there.
        with suppress(StoredBefore):
            await self._movers.store(home.topic, home.partition, frame)
