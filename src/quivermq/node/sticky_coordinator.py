"""Coordinates sticky groups, on the leader of the metadata partition, by heartbeats of members.

The catalog holds what was decided. When a member was last heard is known here only: the next leader
gives every member a whole session. What changes is gathered for a moment and becomes
one edit, however many join and leave. A beat that has nothing to tell its member waits here until
it has, so that hand-over does not wait for beats.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from quivermq.cluster import (
    MEMBERS_MAX,
    Edit,
    Enrolled,
    MemberShare,
    StickyChanges,
    StickyGroup,
    StickyName,
    View,
    regroup,
    sticky_key,
)
from quivermq.errors import NotLeader, Overloaded, QuiverError
from quivermq.node.metadata import Metadata
from quivermq.node.tasks import end_tasks

logger = logging.getLogger("quivermq.coordinator")

BEAT_MS_MAX: Final = 3_000
BEATS_IN_SESSION: Final = 3
_TICK_S: Final = 0.25
_LAPSE_S_MAX: Final = 1.0
_GATHER_S: Final = 0.05
_GATHER_S_MAX: Final = 1.0
_PARKED_MAX: Final = 50_000


class Heartbeat(NamedTuple):
    """A heartbeat of a member."""

    name: StickyName
    member: int
    enrolled: Enrolled
    assignor: str
    generation: int
    released: tuple[int, ...]
    is_leaving: bool

    @property
    def interval_ms(self) -> int:
        """How often it should beat."""
        return min(BEAT_MS_MAX, self.enrolled.session_ms // BEATS_IN_SESSION)


class MemberSession(NamedTuple):
    """The answer to a heartbeat."""

    generation: int
    share: MemberShare
    members: int


class Attention:
    """Time that passed while this broker could hear: a pause of its own is not counted."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen = self._loop.time()
        self._time = 0.0

    def now(self) -> float:
        seen = self._loop.time()
        self._time += min(seen - self._seen, _LAPSE_S_MAX)
        self._seen = seen
        return self._time


class StickyCoordinator:
    """Joins, beats, leaves and evictions of all sticky groups."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._attention = Attention()
        self._term = 0
        """Of the leadership; 0: it is not held here."""
        self._since = 0.0
        self._confirmed = (0, 0)
        """The term, and the count of lapses, in which a quorum said that this broker leads."""
        self._heard: dict[str, dict[int, float]] = {}
        """By the key of the group and the member."""
        self._pending: dict[StickyName, StickyChanges] = {}
        self._writing: dict[StickyName, StickyChanges] = {}
        """The changes that were pending, while they are written to the catalog."""
        self._rounds: dict[StickyName, asyncio.Future[None]] = {}
        """Answered when what is pending is in the catalog."""
        self._parked: dict[str, dict[asyncio.Future[None], tuple[int, MemberShare]]] = {}
        self._parked_count = 0
        self._known: dict[str, StickyGroup] = {}
        """The groups that parked heartbeats were compared with."""
        self._edit_s = 0.0
        self._is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="coordinator")

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)
        self._resign()

    def catalog_changed(self) -> None:
        """Answer the heartbeats of members whose share has changed."""
        sticky = self._metadata.view.sticky
        for key, parked in self._parked.items():
            group = sticky.get(key)
            if group is self._known.get(key):
                continue
            for waiter, (member, share) in parked.items():
                if (
                    group is None or member not in group.members or group.share(member) != share
                ) and not waiter.done():
                    waiter.set_result(None)
        self._known = sticky
        self._is_due.set()

    # Beats.

    async def beat(self, beat: Heartbeat) -> MemberSession:
        """The share of a member, once that is not what it knows."""
        self._take_leadership()
        view = self._metadata.view
        key = sticky_key(view.topic(beat.name.topic).id, beat.name.group)
        if beat.is_leaving:
            await self._leave(key, beat)
            return await self._session(key, beat.member)
        group = view.sticky.get(key)
        if group is not None and beat.member not in group.members:
            self._check_room(beat, group)
        self._heard.setdefault(key, {})[beat.member] = self._attention.now()
        if group is None or beat.member not in group.members:
            try:
                await self._change(beat, lambda changes: changes.join(beat.member, beat.enrolled))
            except QuiverError:
                # A member that is refused is not remembered: there may be any number of them.
                self._heard.get(key, {}).pop(beat.member, None)
                raise
        elif beat.released:
            await self._change(
                beat, lambda changes: changes.release(beat.member, beat.generation, beat.released)
            )
        elif (share := group.share(beat.member)).since <= beat.generation:
            await self._park(key, beat.member, share, beat.interval_ms / 1000)
        return await self._session(key, beat.member)

    def _check_room(self, beat: Heartbeat, group: StickyGroup) -> None:
        """Raise `Overloaded` if the group is full. Here, because a join that is refused later takes
        with it what others said in the same turn."""
        pending = self._pending.get(beat.name)
        joining = pending.joins if pending is not None else {}
        if beat.member not in joining and len(group.members) + len(joining) >= MEMBERS_MAX:
            raise Overloaded(
                f"a sticky group has at most {MEMBERS_MAX:,} members; close some first"
            )

    async def _leave(self, key: str, beat: Heartbeat) -> None:
        self._heard.get(key, {}).pop(beat.member, None)
        group = self._metadata.view.sticky.get(key)
        is_changing = beat.name in self._pending or beat.name in self._writing
        if is_changing or (group is not None and beat.member in group.members):
            await self._change(beat, lambda changes: changes.leave(beat.member))

    async def _session(self, key: str, member: int) -> MemberSession:
        await self._confirm()
        group = self._metadata.view.sticky.get(key)
        if group is None:
            return MemberSession(0, MemberShare((), (), 0), 0)
        return MemberSession(group.generation, group.share(member), len(group.members))

    async def _park(self, key: str, member: int, share: MemberShare, wait_s: float) -> None:
        """Until the member's share is another one, or it is time for the next beat."""
        if self._parked_count >= _PARKED_MAX:
            raise Overloaded(f"{_PARKED_MAX:,} members wait at this broker; try again")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked = self._parked.setdefault(key, {})
        parked[waiter] = member, share
        self._parked_count += 1
        try:
            async with asyncio.timeout(wait_s):
                await waiter
        except TimeoutError:
            # It might have lost its leadership meanwhile, and not know what was decided.
            self._take_leadership()
        finally:
            self._parked_count -= 1
            del parked[waiter]
            if not parked and self._parked.get(key) is parked:
                del self._parked[key]

    async def _change(self, beat: Heartbeat, act: Callable[[StickyChanges], None]) -> None:
        """Have it in the next edit, and wait until that is in the catalog."""
        changes = self._pending.get(beat.name)
        if changes is None:
            changes = self._pending[beat.name] = StickyChanges(beat.assignor)
        act(changes)
        done = self._rounds.get(beat.name)
        if done is None:
            done = self._rounds[beat.name] = asyncio.get_running_loop().create_future()
        self._is_due.set()
        # Shielded: others wait for the same edit.
        await asyncio.shield(done)

    # The leadership.

    def _take_leadership(self) -> None:
        """Raise `NotLeader` unless this broker leads; count sessions from when it began to."""
        term = self._metadata.leading_replica().replica.term
        if term != self._term:
            self._resign()
            self._term, self._since = term, self._attention.now()
            self._known = self._metadata.view.sticky

    async def _confirm(self) -> None:
        """Raise `NotLeader` unless a quorum confirmed this leadership since this broker last stood
        still: others may have assigned everything anew meanwhile."""
        self._take_leadership()
        present = self._term, self._lapses()
        while present != self._confirmed:
            await self._metadata.catch_up()
            self._take_leadership()
            self._confirmed, present = present, (self._term, self._lapses())

    def _lapses(self) -> int:
        return self._metadata.leading_replica().lapses()

    def _resign(self) -> None:
        self._term = 0
        self._heard = {}
        self._pending = {}
        self._writing = {}
        rounds, self._rounds = self._rounds, {}
        waiters = [*rounds.values(), *(w for parked in self._parked.values() for w in parked)]
        for waiter in waiters:
            _fail(waiter, NotLeader("this broker does not lead the metadata partition any more"))

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._work()
            except QuiverError:
                self._resign()
            except Exception:
                logger.exception("the coordinator failed, and goes on")
                await asyncio.sleep(1.0)

    async def _work(self) -> None:
        if not self._metadata.is_leader:
            if self._term:
                self._resign()
            return
        self._take_leadership()
        self._find_changes(self._metadata.view)
        if self._pending:
            # The longer an edit takes, the more go into one.
            await asyncio.sleep(min(max(_GATHER_S, 2 * self._edit_s), _GATHER_S_MAX))
            await self._write()

    def _find_changes(self, view: View) -> None:
        """Members that were silent for too long; topics that got more partitions."""
        now = self._attention.now()
        for key, group in view.sticky.items():
            topic = view.topics_by_id.get(group.topic_id)
            if topic is None:
                continue
            heard = self._heard.get(key, {})
            name = StickyName(topic.name, group.group)
            pending = self._pending.get(name)
            # A member that said goodbye is not heard any more either.
            leaving = pending.leaves if pending is not None else ()
            silent = [
                member
                for member, enrolled in group.members.items()
                if member not in leaving
                and now - heard.get(member, self._since) > enrolled.session_ms / 1000
            ]
            if not silent and len(topic.partitions) == len(group.owners):
                continue
            changes = self._pending.setdefault(name, StickyChanges(group.assignor))
            for member in silent:
                logger.info(
                    "%s of group %s of topic %s was silent for too long, and loses its partitions",
                    group.members[member].name,
                    name.group,
                    name.topic,
                )
                changes.leave(member)
                heard.pop(member, None)
        for key in [key for key in self._heard if not self._heard[key] and key not in view.sticky]:
            del self._heard[key]

    async def _write(self) -> None:
        """Everything that is pending, in as few edits as it fits into."""
        pending = self._writing = self._pending
        self._pending = {}
        rounds, self._rounds = self._rounds, {}
        try:
            while pending:
                for name, error in (await self._write_some(pending)).items():
                    if name in rounds:
                        _fail(rounds.pop(name), error)
                for name in [name for name in rounds if name not in pending]:
                    _finish(rounds.pop(name))
        except QuiverError as error:
            for done in rounds.values():
                _fail(done, error)
            raise

    async def _write_some(
        self, pending: dict[StickyName, StickyChanges]
    ) -> dict[StickyName, QuiverError]:
        """One edit; takes out of `pending` what is done or refused, and returns the refusals."""
        outcome = regroup(self._metadata.view, {})

        def build(view: View) -> Edit | None:
            nonlocal outcome
            outcome = regroup(view, pending)
            return outcome.edit

        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._metadata.edit(build)
        self._edit_s = loop.time() - began
        for name in (*outcome.done, *outcome.refused):
            del pending[name]
        return outcome.refused


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _fail(waiter: asyncio.Future[None], error: QuiverError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # seen: the request may be gone
