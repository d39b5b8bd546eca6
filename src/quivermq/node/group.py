"""A replica at work on this broker: its inputs, its disk work, its mail and who waits for it.

Runs on the event loop, and never waits there. Inputs mark the group as stirred; the crew then lets
all stirred groups go on at once, so that what came in together is written and sent together.
"""

import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from quivermq.batches import Frame, Offset
from quivermq.cluster import METADATA_GROUP
from quivermq.errors import (
    BrokenInvariant,
    Corrupt,
    NotLeader,
    OffsetOutOfRange,
    QuiverError,
    StorageFailed,
    Timeout,
)
from quivermq.log import Log, Owner
from quivermq.node.crew import Crew
from quivermq.node.disk_work import Drop, Work, do_disk_work, open_log, waits_for_no_disk
from quivermq.node.group_names import GroupName
from quivermq.node.remedies import lost_text, mending_text
from quivermq.queue import Desk
from quivermq.replica import (
    Answer,
    Effect,
    Mail,
    Persist,
    Repair,
    Replica,
    Result,
    Rouse,
    Send,
    Wake,
)

logger = logging.getLogger("quivermq.group")

RETRY_FULL_DISK_S: Final = 0.5
_OPEN_AGAIN_S: Final = 1.0
_CAMPAIGN_TICKS: Final = frozenset({1, 2, 4, 7})
_STUMBLES: Final = (Corrupt, OffsetOutOfRange, StorageFailed, BrokenInvariant)
_Input = ParamSpec("_Input")
T = TypeVar("T")
Done = Callable[[Result], None]


class Group:
    """One replica, its log, and everything that waits for either."""

    def __init__(
        self,
        group_id: bytes,
        name: GroupName,
        member: int,
        log: Log,
        crew: Crew,
        *,
        is_preferred: bool = False,
    ) -> None:
        self.id = group_id
        self.name = name
        self.member = member
        self.is_preferred = is_preferred
        """Whether this replica should lead if nobody does."""
        self.log = log
        self._crew = crew
        self.replica = self._replica()
        self.trouble = ""
        """Not "": it does not run, and why."""
        self.incarnation = 0
        """Counts the groups that the runner was given."""
        self.is_stirred = self.was_serving = False
        self.leaderless_ticks = self._tokens = 0
        self.after: Callable[[], None] | None = None
        """Called whenever something may have been applied."""
        self._waiting: dict[int, Done] = {}
        self._disk_queue: list[Work] = []
        self._writing: list[Work] = []
        self._readers: dict[object, Callable[[], None]] = {}
        # Grows when the replica is made anew: disk work of the one before reports to nobody.
        self._life = 0
        self.is_closed = False
        self._look_for_damage()

    def _look_for_damage(self) -> None:
        if self.replica.is_lost:
            self._fail(lost_text(f"this replica lost data: {self.log.damage[0]}", self.member))
        elif self.ailment:
            logger.error("%s is damaged: %s", self.name, self.ailment)

    @property
    def ailment(self) -> str:
        """What is wrong here, and what to do about it; "" if nothing is."""
        return self.trouble or mending_text(self.replica, self.member)

    @property
    def is_metadata(self) -> bool:
        return self.id == METADATA_GROUP

    def _replica(self) -> Replica:
        return Replica(self.member, self.log, self._crew.replica_settings, self._crew.dice)

    # Inputs.

    def produce(self, frame: Frame, done: Done) -> int:
        """Store a batch; `done` is called once. Returns a token for `forget`."""
        token = self._token(done)
        if token:
            # What `_step` does, which every batch would pay for.
            try:
                self.replica.produce(token, frame, self._crew.now_ms())
            except _STUMBLES as error:
                self._stumbled(error)
            else:
                self.stir()
        return token

    def ask(self, done: Done, ask: Callable[[Replica, int], None]) -> int:
        """Any other request of the replica: `ask(replica, token)` makes it."""
        token = self._token(done)
        if token:
            self._step(ask, self.replica, token)
        return token

    def at_desk(self, act: Callable[[Desk], T], done: Done | None = None) -> T:
        """Serve a consumer: what `act` returns, or raises; `NotLeader` where nobody is served.

        `done` is called once, when everything that was said at the desk so far is committed, or
        that is not known. If this raises, it is not called. What nobody waits for is proposed
        with what comes next, or a moment later.
        """
        if self.trouble or self.is_closed:
            raise NotLeader(f"{self.name} does not run here: {self.trouble or 'it is closed'}")
        token = None if done is None else self._token(done)
        crew = self._crew
        try:
            result = self.replica.at_desk(act, token, crew.now_ms(), crew.steady_ms())
        except BaseException as error:
            if token is not None:
                self.forget(token)
            if isinstance(error, BrokenInvariant):
                self._stumbled(error)
            raise
        finally:
            if done is None:
                self._crew.stirred_later(self)
            else:
                self.stir()
        return result

    def forget(self, token: int) -> None:
        """Whoever asked does not wait any more; what was asked may happen all the same."""
        self._waiting.pop(token, None)

    def _token(self, done: Done) -> int:
        if self.trouble or self.is_closed:
            done(Timeout(f"{self.name} does not run here: {self.trouble or 'it is closed'}"))
            return 0
        self._tokens += 1
        self._waiting[self._tokens] = done
        return self._tokens

    def receive(self, sender: int, mail: Mail) -> None:
        if not (self.trouble or self.is_closed):
            self._step(self.replica.receive, sender, mail)

    def tick(self) -> None:
        if not (self.trouble or self.is_closed):
            self.leaderless_ticks = 0 if self.replica.leader else self.leaderless_ticks + 1
            self._step(self.replica.tick, self._crew.now_ms())
            if self.leaderless_ticks in _CAMPAIGN_TICKS:
                self.campaign()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody has led for so long that a majority must be missing."""
        return self.leaderless_ticks > self._crew.replica_settings.election_ticks

    def campaign(self) -> None:
        """Lead, if this is the replica that should, without waiting for others to miss a leader."""
        voters = self.replica.configuration.voters
        if self.is_preferred or voters == (self.member,):
            self._step(self.replica.campaign)

    def wake(self) -> None:
        if not (self.trouble or self.is_closed):
            self._step(self.replica.wake)

    def transfer_leader(self, target: int) -> None:
        if not (self.trouble or self.is_closed):
            # What was said at the desk goes with the office.
            self.go_on()
            self._step(self.replica.transfer_leader, target)

    def _step(
        self, act: Callable[_Input, object], *args: _Input.args, **rest: _Input.kwargs
    ) -> None:
        """An input to the replica, which may stumble over its log, or over itself."""
        try:
            act(*args, **rest)
        except _STUMBLES as error:
            self._stumbled(error)
        else:
            self.stir()

    def drop_before(self, plan: Callable[[Log], object]) -> None:
        """Retention: in turn with the other disk work; nothing while some is under way."""
        if self.trouble or self.is_closed or self.replica.is_mending:
            return
        if not any(isinstance(piece, Drop) for piece in (*self._writing, *self._disk_queue)):
            self._disk_queue.append(Drop(plan))
            self._write_next()

    def now_ms(self) -> int:
        return self._crew.now_ms()

    def steady_ms(self) -> int:
        return self._crew.steady_ms()

    @property
    def election_s(self) -> float:
        """How long others wait for a leader before they look for another, at least."""
        settings = self._crew.replica_settings
        return settings.tick_ms * settings.election_ticks / 1000

    def stir(self) -> None:
        if not self.is_stirred:
            self.is_stirred = True
            self._crew.stirred(self)

    def meet_damage(self, error: Corrupt) -> None:
        """A reader met damage in the log."""
        if not (self.trouble or self.is_closed or self.replica.is_mending):
            self._begin_again(error)

    # Waiting for messages.

    def on_messages(self, key: object, call: Callable[[], None]) -> None:
        """Call once when there is more to read, or the group ends."""
        self._readers[key] = call

    def off_messages(self, key: object) -> None:
        self._readers.pop(key, None)

    @property
    def readable_end(self) -> Offset:
        """Behind the last message that may be shown."""
        return self.replica.edge.next_offset

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, {}
        for call in readers.values():
            call()

    # What follows.

    def go_on(self) -> None:
        """Carry out everything that follows from the inputs since the last time."""
        self.is_stirred = False
        if self.trouble or self.is_closed:
            return
        try:
            effects = self.replica.take_effects()
        except _STUMBLES as error:
            self._stumbled(error)
            return
        self._dispatch(effects)
        self._write_next()
        if self.replica.is_serving != self.was_serving:
            self.was_serving = self.replica.is_serving
            self._crew.office_changed(self)
            # Who waits here may have to go elsewhere.
            self._wake_readers()
        if self.after is not None:
            self.after()

    def _stumbled(self, error: object) -> None:
        """What a replica, or its disk work, ended in: begin again where that is known to help."""
        if isinstance(error, Corrupt | OffsetOutOfRange):
            # Corrupt: the log knows what is damaged, and a new replica mends it. Out of range:
            # retention dropped what the core was about to read; a new replica sees what is kept.
            self._begin_again(error)
        elif isinstance(error, StorageFailed):
            self._open_again(error)
        else:
            self._fail(f"it failed: {error!r}")

    def _dispatch(self, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._crew.post(self, effect.to, effect.mail)  # type: ignore[union-attr]
            elif kind is Answer:
                done = self._waiting.pop(effect.token, None)  # type: ignore[union-attr]
                if done is not None:
                    done(effect.result)  # type: ignore[union-attr]
            elif kind is Wake:
                self._wake_readers()
            else:
                self._disk_queue.append(effect)  # type: ignore[arg-type]

    def _write_next(self) -> None:
        """Hand the gathered disk work over, unless some is under way."""
        if self._writing or not self._disk_queue or self.is_closed:
            return
        self._writing, self._disk_queue = self._disk_queue, []
        work, log, life = self._writing, self.log, self._life
        if self._crew.writes_inline and waits_for_no_disk(work):
            try:
                result: object = do_disk_work(log, work)
            except Exception as error:
                result = error
            self._written(result, life)
        else:
            self._crew.write(
                self, lambda: do_disk_work(log, work), lambda result: self._written(result, life)
            )

    def _written(self, result: object, life: int) -> None:
        """Disk work is done, as many pieces of it as `result` says; or it failed."""
        if life != self._life or self.is_closed:
            return
        if not isinstance(result, int):
            self._stumbled(result)
            return
        try:
            for piece in self._writing[:result]:
                if isinstance(piece, Persist):
                    self.replica.persisted(piece.number)
                elif isinstance(piece, Repair):
                    self.replica.repaired()
                    if not self.replica.is_mending:
                        logger.warning("%s is mended, and takes part again", self.name)
        except _STUMBLES as error:
            self._stumbled(error)
            return
        self._writing = self._writing[result:]
        if self._writing:
            # What is left comes again, in front of everything else: the log is as it was.
            logger.warning("%s: the disk is full", self.name)
            self._crew.later(RETRY_FULL_DISK_S, lambda: self._retry(life))
        self.stir()

    def _retry(self, life: int) -> None:
        if life == self._life and not self.is_closed:
            work = self._writing + self._disk_queue
            # What makes room goes first, or the disk would stay full for ever.
            drops = [piece for piece in work if isinstance(piece, Drop)]
            self._disk_queue = drops + [piece for piece in work if not isinstance(piece, Drop)]
            self._writing = []
            self._write_next()

    def _begin_again(self, error: QuiverError) -> None:
        """A replica anew on the same log, which knows its damage. One opened anew would not.

        Once the thread has done what it has in hand: a replica must not be made of a log that is
        being written to, or it could forget a vote.
        """
        if isinstance(error, Corrupt) and not self.log.damage:
            self._open_again(error)
            return
        logger.warning("%s begins again: %s", self.name, error)
        log = self.log
        self._replace_log(f"it begins again after: {error}", lambda: log)

    def _open_again(self, error: QuiverError) -> None:
        """Nobody knows what the disk holds: read it. In the thread, behind what it is doing."""
        logger.error("%s is opened anew: %s", self.name, error)
        disk, folder, settings = self._crew.disk, self.name.folder, self._crew.log_settings
        owner = Owner(self.id, self.member)
        self._replace_log(
            f"it is opened anew after: {error}", lambda: open_log(disk, folder, settings, owner)
        )

    def _replace_log(self, trouble: str, get: Callable[[], Log]) -> None:
        self._end_requests()
        self._life += 1
        self.trouble = trouble
        life = self._life

        def again(error: object) -> None:
            if life == self._life and not self.is_closed:
                self._open_again(StorageFailed(str(error)))

        def got(result: object) -> None:
            if life != self._life or self.is_closed:
                return
            if isinstance(result, Log):
                self._renew(result)
            elif isinstance(result, Corrupt):
                self._fail(lost_text(f"this replica lost its log: {result}", self.member))
            else:
                self._crew.later(_OPEN_AGAIN_S, lambda: again(result))

        self._crew.write(self, get, got)

    def _renew(self, log: Log) -> None:
        self._end_requests()
        self._life += 1
        self.log, self.trouble = log, ""
        self._disk_queue, self._writing = [], []
        try:
            self.replica = self._replica()
        except (QuiverError, BrokenInvariant) as error:
            self._fail(f"the log cannot be used: {error}")
            return
        self._look_for_damage()
        self.stir()

    def give_up(self, error: Exception) -> None:
        """Something that nobody foresaw: nothing of this replica can be trusted any more."""
        logger.error("%s failed", self.name, exc_info=error)
        if not (self.trouble or self.is_closed):
            self._fail(f"it failed: {error!r}")

    def _fail(self, reason: str) -> None:
        self.trouble = reason
        logger.critical("%s stops: %s", self.name, reason)
        for member in self.replica.configuration.members:
            if member != self.member:
                # Those who sleep may believe that this one leads them.
                self._crew.post(self, member, Rouse())
        self._end_requests()
        self.stir()
        self._crew.failed(self)

    def _end_requests(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(Timeout(f"{self.name} was interrupted: the outcome is unknown; try again"))
        self._wake_readers()
        if self.was_serving:
            self.was_serving = False
            self._crew.office_changed(self)

    @property
    def is_writing(self) -> bool:
        return bool(self._writing or self._disk_queue)

    def close(self) -> None:
        """End everything that waits. The log may be removed once the disk thread is idle."""
        if not self.is_closed:
            self.is_closed = True
            self._life += 1
            self._end_requests()
