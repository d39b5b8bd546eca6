"""Runs one replica on this broker: its inputs, its disk work, its mail, and the requests that wait.

Runs on the event loop, and never waits there. An input schedules the replica; the scheduler then
lets all scheduled replicas advance at once, so that what came in together is written and sent
together.

Damage is repaired from other replicas, by a replica made anew over the same log. A disk that failed
is read anew, until that succeeds. What a later release wrote waits for that release. Meanwhile
another replica leads, and what was applied here can be read where that is safe.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from quivermq.batches import KIB, Frame, Offset
from quivermq.cluster import METADATA_PARTITION, node_of
from quivermq.errors import (
    BrokenInvariant,
    Corrupt,
    NotLeader,
    OffsetOutOfRange,
    QuiverError,
    StorageFailed,
    Timeout,
    UnsupportedFormat,
)
from quivermq.log import Log, Owner
from quivermq.node.ailments import lost_text, repair_text
from quivermq.node.data_dir import PartitionName
from quivermq.node.disk_work import (
    Opened,
    append_now,
    open_log,
    read_state,
    waits_for_no_disk,
    write_waiting,
)
from quivermq.node.replica_host import ReplicaHost
from quivermq.node.results import Done, raise_refusal, result_future
from quivermq.queue import LeaseManager
from quivermq.replica import (
    Answer,
    DiskWork,
    Drop,
    Effect,
    Mail,
    Persist,
    Produced,
    Repair,
    Replica,
    ReplicaState,
    Result,
    Rouse,
    SaveCheckpoint,
    Send,
    Wake,
    carry_out_all,
)

if TYPE_CHECKING:
    from quivermq.tracing import ReplicationSpans

logger = logging.getLogger("quivermq.replica")

RETRY_FULL_DISK_S: Final = 0.5
_REOPEN_S: Final = 1.0
_FAILURES: Final = (
    Corrupt, OffsetOutOfRange, StorageFailed, UnsupportedFormat, BrokenInvariant,
)  # fmt: skip
"""The errors that a replica, or its disk work, may end in."""
_PACKED_IN_TURN_BYTES_MAX: Final = 256 * KIB
"""A state that is larger is packed where no write waits for it."""
_CAMPAIGN_TICKS: Final = frozenset({1, 2, 4, 7})
_Input = ParamSpec("_Input")
T = TypeVar("T")


class HostedReplica:
    """One replica, its log, and the requests that wait for either."""

    def __init__(
        self,
        partition_id: bytes,
        name: PartitionName,
        member: int,
        found: Opened,
        host: ReplicaHost,
        *,
        preferred: int = 0,
    ) -> None:
        self.id = partition_id
        self.name = name
        self.member = member
        self.preferred = preferred
        """The member that should lead if no other does."""
        self.is_heir = False
        """Whether this one should, until there is a leader: the one before is gone."""
        self.log = found.log
        self._host = host
        self.replica = self._replica(found.state)
        self.trouble = ""
        """Not "": it does not run, and why."""
        self._refusal: QuiverError | None = None
        """While it does not run, and what was applied can still be read: the answer to the rest."""
        self.incarnation = 0
        """Counts the replicas that the scheduler was given."""
        self.spans: ReplicationSpans | None = None
        """Set by the scheduler, if this broker traces."""
        self.is_scheduled = False
        self.was_serving = False
        self.leaderless_ticks = 0
        self.patience_ticks = 0
        """It does not stand for election for so long, though it has no leader."""
        self.after: Callable[[], None] | None = None
        """Called whenever something may have been applied."""
        self._tokens = 0
        self._waiting: dict[int, Done] = {}
        self._disk_queue: list[DiskWork] = []
        self._writing: list[DiskWork] = []
        self._readers: dict[object, Callable[[], None]] = {}
        # Grows when the replica is made anew: disk work of the one before is not reported.
        self.life = 0
        self.is_closed = False
        # Whether a state is being packed.
        self._is_packing = False
        self._look_for_damage()

    @property
    def is_metadata(self) -> bool:
        return self.id == METADATA_PARTITION

    # Inputs.

    def produce(self, frame: Frame, done: Done) -> int:
        """Store a batch; `done` is called once. Returns a token for `forget`."""
        token = self._token(done)
        if token:
            # `_step` written out: every batch would pay for the call.
            try:
                self.replica.produce(token, frame, self._host.now_ms())
            except _FAILURES as error:
                self._recover_from(error)
            else:
                self.schedule()
        return token

    def produce_at_once(self, frame: Frame, done: Callable[[Produced], None]) -> bool:
        """Store a batch in this very turn, where neither other replicas nor a disk are waited for;
        `done` is called before readers are woken. False: nothing was done, `produce` it.

        Raises the refusal.
        """
        if not self._may_write_at_once or not self._host.is_first_of_turn(self):
            return False
        live = self.replica.at_once
        # A body that is not what it claims to be is its sender's mistake: no failure of this log.
        stamped = None if live is None else live.stamp_at_once(frame, self._host.now_ms())
        if live is None or stamped is None:
            return False
        try:
            if not append_now(self.log, (stamped,), self.spans):
                return False
            stored = live.wrote_at_once(stamped)
        except _FAILURES as error:
            self._recover_from(error)
            raise self._interrupted() from error
        done(stored)
        if self._readers:
            self._wake_readers()
        if self.after is not None:
            self.after()
        return True

    @property
    def _may_write_at_once(self) -> bool:
        return self._host.writes_inline and not (self.trouble or self.is_closed or self.is_writing)

    def _write_waiting(self) -> bool:
        """Write at once all that was taken in; False if the replica failed."""
        live = self.replica.at_once
        try:
            if live is not None:
                write_waiting(live, self.log, self.spans)
        except _FAILURES as error:
            self._recover_from(error)
            return False
        return True

    def submit(self, done: Done, request: Callable[[Replica, int], None]) -> int:
        """Any other request: `request(replica, token)` makes it, and `done` is called once."""
        token = self._token(done)
        if token:
            self._step(request, self.replica, token)
        return token

    async def call(self, request: Callable[[Replica, int], None]) -> Result:
        """The same, awaited; raises the refusal."""
        future, done = result_future()
        token = self.submit(done, request)
        try:
            return raise_refusal(await future)
        finally:
            self.forget(token)

    def with_leases(self, act: Callable[[LeaseManager], T], done: Done | None = None) -> T:
        """Let `act` use the lease manager; returns or raises what it does, or `NotLeader`.

        `done` is called once, when all lease operations so far are committed, or when that cannot
        be known. If this raises, it is not called. Without `done` the operations are proposed with
        what comes next, or a moment later.
        """
        if self.trouble or self.is_closed:
            raise NotLeader(f"{self.name} does not run here: {self.trouble or 'it is closed'}")
        token = None if done is None else self._token(done)
        host = self._host
        try:
            result = self.replica.with_leases(act, token, host.now_ms(), host.steady_ms())
        except BaseException as error:
            if token is not None:
                self.forget(token)
            if isinstance(error, BrokenInvariant):
                self._recover_from(error)
            raise
        finally:
            if done is None:
                self._host.schedule_later(self)
            elif not self._advance_at_once():
                self.schedule()
        return result

    def _advance_at_once(self) -> bool:
        """Write what is waited for in this very turn, where neither other replicas nor a disk are
        waited for: the first of a turn does not wait for others. Mail leaves with a pass."""
        is_first = (
            self.replica.is_alone and self._may_write_at_once and self._host.is_first_of_turn(self)
        )
        if is_first:
            self.advance()
        return is_first

    async def commit_lease_ops(self, act: Callable[[LeaseManager], T]) -> T:
        """Let `act` use the lease manager; returns once all operations so far are committed."""
        future, done = result_future()
        found = self.with_leases(act, done)
        raise_refusal(await future)
        return found

    def forget(self, token: int) -> None:
        """The request is not waited for any more; it may be carried out all the same."""
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

    def tick(self, away: Collection[int] = ()) -> None:
        """`away`: members whose brokers are silent."""
        if not (self.trouble or self.is_closed):
            replica = self.replica
            if replica.leader:
                self.leaderless_ticks, self.is_heir, self.patience_ticks = 0, False, 0
            elif self.patience_ticks:
                # No timeout runs meanwhile: who stands now has others to vote for it.
                self.patience_ticks -= 1
                if not self.patience_ticks:
                    self.campaign()
                return
            else:
                self.leaderless_ticks += 1
            self._tick(replica, away)
            if self.leaderless_ticks in _CAMPAIGN_TICKS:
                self.campaign()

    def _tick(self, replica: Replica, away: Collection[int]) -> None:
        try:
            replica.tick(self._host.now_ms(), away)
        except _FAILURES as error:
            self._recover_from(error)
        else:
            if replica.has_news:
                self.schedule()

    @property
    def is_abandoned(self) -> bool:
        """Whether there was no leader for so long that a majority must be missing."""
        return self.leaderless_ticks > self._host.replica_settings.election_ticks

    def campaign(self) -> None:
        """Stand for election at once, if this replica should lead."""
        voters = self.replica.configuration.voters
        if self.is_heir or self.member == self.preferred or voters == (self.member,):
            self._step(self.replica.campaign)

    def wake(self) -> None:
        if not (self.trouble or self.is_closed):
            self._step(self.replica.wake)

    def succeed(self, heir: int, turn: int = 0, turns: int = 0) -> None:
        """The leader's broker is silent for an election timeout. Others wait for the heir, and
        where very many lost their leader an heir waits for its turn, at one of the next ticks."""
        if not (self.trouble or self.is_closed):
            self._step(self.replica.lose_leader)
            self.is_heir = heir == self.member
            self.leaderless_ticks = 0
            self.patience_ticks = turn if self.is_heir else turns
            if not self.patience_ticks:
                self.campaign()

    def transfer_leader(self, target: int) -> None:
        if not (self.trouble or self.is_closed):
            # Lease operations that wait are proposed before the leadership goes.
            self.advance()
            self._step(self.replica.transfer_leader, target)

    def _step(
        self, act: Callable[_Input, object], *args: _Input.args, **rest: _Input.kwargs
    ) -> None:
        """Give the replica an input; begin again if it fails over its log, or over itself."""
        try:
            act(*args, **rest)
        except _FAILURES as error:
            self._recover_from(error)
        else:
            self.schedule()

    def drop_before(self, plan: Callable[[Log], object]) -> None:
        """Retention: in turn with the other disk work; nothing while some is under way."""
        if self.trouble or self.is_closed or self.replica.is_repairing:
            return
        if not any(isinstance(piece, Drop) for piece in (*self._writing, *self._disk_queue)):
            self._disk_queue.append(Drop(plan))
            if self._write_next():
                self.schedule()

    def now_ms(self) -> int:
        return self._host.now_ms()

    def steady_ms(self) -> int:
        return self._host.steady_ms()

    def lapses(self) -> int:
        """How often this broker stood still for longer than an election takes."""
        return self._host.lapses()

    @property
    def election_s(self) -> float:
        """The least time after which other replicas elect another leader."""
        settings = self._host.replica_settings
        return settings.tick_ms * settings.election_ticks / 1000

    def schedule(self) -> None:
        if not self.is_scheduled:
            self.is_scheduled = True
            self._host.schedule(self)

    # Waiting for messages.

    def on_messages(self, key: object, call: Callable[[], None]) -> None:
        """Call once when there is more to read, or the replica ends."""
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

    # Effects.

    def advance(self) -> None:
        """Carry out everything that follows from the inputs since the last time."""
        self.is_scheduled = False
        if self.trouble or self.is_closed:
            return
        if self._may_write_at_once and not self._write_waiting():
            return
        if not self._carry_out():
            return
        # What was written at once is not waited for: what follows from it leaves in the same turn.
        is_more_due = self._write_next() and self._carry_out() and bool(self._disk_queue)
        if self._has_halted():
            # What was written at once has failed: the replica's leadership has ended with it.
            return
        if is_more_due or self.replica.is_behind:
            self.schedule()
        if self.replica.is_serving != self.was_serving:
            self.was_serving = self.replica.is_serving
            self._host.leadership_changed(self)
            # Requests that wait here may have to go to another broker.
            self._wake_readers()
        if self.after is not None:
            self.after()

    def _has_halted(self) -> bool:
        return bool(self.trouble) or self.is_closed

    def _carry_out(self) -> bool:
        """Carry out all effects but disk work, which is gathered; False if the replica failed."""
        try:
            effects: list[Effect] = self.replica.take_effects()
        except _FAILURES as error:
            self._recover_from(error)
            return False
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._host.post(self, effect.to, effect.mail)  # type: ignore[union-attr]
            elif kind is Answer:
                done = self._waiting.pop(effect.token, None)  # type: ignore[union-attr]
                if done is not None:
                    done(effect.result)  # type: ignore[union-attr]
            elif kind is Wake:
                self._wake_readers()
            elif kind is SaveCheckpoint:
                self._pack(effect)  # type: ignore[arg-type]
            else:
                self._disk_queue.append(effect)  # type: ignore[arg-type]
        return True

    def _pack(self, work: SaveCheckpoint) -> None:
        """Have a state packed aside if it is large, and then written in turn with all else.

        No request waits for it; while one is being packed, the next is left out.
        """
        if work.state.size_bytes <= _PACKED_IN_TURN_BYTES_MAX:
            self._disk_queue.append(work)
            return
        if self._is_packing:
            return
        self._is_packing = True
        life = self.life

        def packed(result: object) -> None:
            self._is_packing = False
            if life != self.life or self.is_closed:
                return
            limit = self._host.log_settings.checkpoint_bytes_max
            if not isinstance(result, bytes):
                self.give_up(result if isinstance(result, Exception) else Exception(repr(result)))
            elif len(result) > limit:
                logger.error(
                    "%s: its state of %d bytes is above checkpoint_bytes_max (%d) and is not "
                    "written; the log is kept from the last one that was, and it is tried again "
                    "with the next segment: delete groups or let consumers settle",
                    self.name, len(result), limit,
                )  # fmt: skip
            else:
                self._disk_queue.append(work)
                if self._write_next():
                    self.schedule()

        self._host.run_aside(work.state.pack, packed)

    def _write_next(self) -> bool:
        """Hand the gathered disk work over, unless some is under way; True if it is written, so
        that more may follow."""
        if self._writing or not self._disk_queue or self.is_closed:
            return False
        self._writing, self._disk_queue = self._disk_queue, []
        work, log, life = self._writing, self.log, self.life
        if self._host.writes_inline and waits_for_no_disk(work):
            try:
                result: object = carry_out_all(log, work)
            except Exception as error:
                result = error
            return self._written(result, life)

        def written(result: object) -> None:
            if self._written(result, life):
                self.schedule()

        self._host.write(self, lambda: carry_out_all(log, work), written)
        return False

    def _written(self, result: object, life: int) -> bool:
        """Disk work is done, as many pieces of it as `result` says; or it failed: then False."""
        if life != self.life or self.is_closed:
            return False
        if not isinstance(result, int):
            self._recover_from(result)
            return False
        try:
            for piece in self._writing[:result]:
                if isinstance(piece, Persist):
                    self.replica.persisted(piece.number)
                    if self.spans is not None:
                        self.spans.write(piece.frames)
                elif isinstance(piece, Repair):
                    self.replica.repaired()
                    self.log.forget_checkpoint()
                    if not self.replica.is_repairing:
                        logger.warning("%s is mended, and takes part again", self.name)
                        self._tell("replica_mended", "is mended, and takes part again")
        except _FAILURES as error:
            self._recover_from(error)
            return False
        self._writing = self._writing[result:]
        if self._writing:
            # What is left comes again, in front of everything else: the log is as it was.
            logger.warning("%s: the disk is full", self.name)
            self._tell("disk_full", "waits to be written: the disk is full")
            self._host.call_later(RETRY_FULL_DISK_S, lambda: self._retry(life))
        return True

    def _retry(self, life: int) -> None:
        if life == self.life and not self.is_closed:
            work = self._writing + self._disk_queue
            # What makes room goes first, or the disk would stay full for ever.
            drops = [piece for piece in work if isinstance(piece, Drop)]
            self._disk_queue = drops + [piece for piece in work if not isinstance(piece, Drop)]
            self._writing = []
            if self._write_next():
                self.schedule()

    def _end_requests(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(self._interrupted())
        self._wake_readers()
        if self.was_serving:
            self.was_serving = False
            self._host.leadership_changed(self)

    def _interrupted(self) -> Timeout:
        return Timeout(f"{self.name} was interrupted: the outcome is unknown; try again")

    @property
    def is_writing(self) -> bool:
        return bool(self._writing or self._disk_queue)

    def close(self) -> None:
        """End everything that waits. The log may be removed once the disk thread is idle."""
        if not self.is_closed:
            self.is_closed = True
            self.life += 1
            self._end_requests()

    # Failures.

    def _replica(self, state: ReplicaState | None, *, must_mend: bool = False) -> Replica:
        host, log = self._host, self.log
        try:
            return Replica(
                self.member, log, host.replica_settings, host.dice, state, must_mend=must_mend
            )
        finally:
            log.forget_checkpoint()

    @property
    def ailment(self) -> str:
        """The trouble here, and what to do about it; "" if all is well."""
        return self.trouble or repair_text(self.replica, self.member)

    def _look_for_damage(self) -> None:
        if self.replica.is_lost:
            self._fail(lost_text(f"this replica lost data: {self.log.damage[0]}", self.member))
        elif self.ailment:
            logger.error("%s is damaged: %s", self.name, self.ailment)
            self._tell("replica_damaged", f"is damaged: {self.ailment}")

    def report_unreadable(self, error: QuiverError) -> QuiverError:
        """A reader could not read what is stored here. Returns the error to answer with.

        Others have it: they are to lead, while this replica repairs its log. One that is alone
        stays, for all the rest that it has.
        """
        if self.replica.is_alone or self.replica.mends_alone:
            kind = Corrupt if isinstance(error, Corrupt) else StorageFailed
            return kind(f"{self.name} has no other replica to read from: {error}")
        if not (self.trouble or self.is_closed or self.replica.is_repairing):
            self._recover_from(error)
        return NotLeader(f"{self.name} is damaged here and is being mended")

    @property
    def is_readable(self) -> bool:
        """Whether what is applied here may be read: it is committed, and the log is at hand."""
        is_halted = bool(self.trouble) and self._refusal is None
        return not (is_halted or self.is_closed or self.replica.is_repairing)

    @property
    def refusal(self) -> QuiverError | None:
        """Why no broker serves this partition, where that is known for sure: there is no other
        replica."""
        if self.replica.mends_alone:
            return Corrupt(f"{self.name} has lost data: {self.ailment}")
        return self._refusal if self.replica.is_alone else None

    def _recover_from(self, error: object) -> None:
        """Begin again after the error that the replica or its disk work ended in, if that helps."""
        if isinstance(error, QuiverError):
            # What our own code broke is not asked for anything more.
            with suppress(QuiverError, BrokenInvariant):
                for effect in self.replica.hand_over():
                    self._host.post(self, effect.to, effect.mail)
        if isinstance(error, UnsupportedFormat):
            # Again would end the same way. It goes on when a release is started that knows it.
            self._refusal = UnsupportedFormat(f"{self.name} stopped: {error}")
            self._fail(str(error))
        elif isinstance(error, Corrupt | OffsetOutOfRange):
            # Corrupt: the log knows what is damaged, and a new replica mends it. Out of range:
            # retention dropped what the core was about to read; a new replica sees what is kept.
            self._restart(error)
        elif isinstance(error, StorageFailed):
            self._reopen(error)
        else:
            self._fail(f"it failed: {error!r}")

    def _restart(self, error: QuiverError) -> None:
        """A replica anew on the same log, which knows its damage. One opened anew would not.

        Once the thread has done what it has in hand: a replica must not be made of a log that is
        being written to, or it could forget a vote.
        """
        if isinstance(error, Corrupt) and not self.log.damage:
            self._reopen(error)
            return
        logger.warning("%s begins again: %s", self.name, error)
        log = self.log
        must_mend = isinstance(error, Corrupt) and not self.replica.is_alone
        self._replace_log(f"it begins again after: {error}", lambda: log, must_mend=must_mend)

    def _reopen(self, error: QuiverError) -> None:
        """It is not known what the disk holds: read it. In the thread, behind what it is doing."""
        logger.error("%s is opened anew: %s", self.name, error)
        self._tell("disk_trouble", f"is opened anew: {error}")
        disk, folder, settings = self._host.disk, self.name.folder, self._host.log_settings
        owner = Owner(self.id, self.member)
        self._replace_log(
            f"it is opened anew after: {error}", lambda: open_log(disk, folder, settings, owner)
        )

    def _replace_log(
        self, trouble: str, get: Callable[[], Log], *, must_mend: bool = False
    ) -> None:
        self._end_requests()
        self.life += 1
        self.trouble = trouble
        life = self.life

        def again(error: object) -> None:
            if life == self.life and not self.is_closed:
                self._reopen(StorageFailed(str(error)))

        def got(result: object) -> None:
            if life != self.life or self.is_closed:
                return
            if isinstance(result, Opened):
                self._renew(result, must_mend=must_mend)
            elif isinstance(result, Corrupt):
                self._fail(lost_text(f"this replica lost its log: {result}", self.member))
            elif isinstance(result, UnsupportedFormat):
                self._fail(str(result))
            else:
                # What is applied can be read all the same, say from a disk that takes no writes.
                self._refusal = StorageFailed(f"{self.name} takes no writes: {result}")
                self._host.call_later(_REOPEN_S, lambda: again(result))

        self._host.write(self, lambda: read_state(get()), got)

    def _renew(self, found: Opened, *, must_mend: bool) -> None:
        self._end_requests()
        self.life += 1
        self.log, self.trouble, self._refusal = found.log, "", None
        self._disk_queue, self._writing = [], []
        try:
            self.replica = self._replica(found.state, must_mend=must_mend)
        except (QuiverError, BrokenInvariant) as error:
            self._fail(f"the log cannot be used: {error}")
            return
        self._look_for_damage()
        self.schedule()

    def _tell(self, kind: str, text: str) -> None:
        self._host.tell(self, kind, f"{self.name} of broker {node_of(self.member)} {text}")

    def give_up(self, error: Exception) -> None:
        """Stop after an unforeseen error: nothing of this replica can be trusted any more."""
        logger.error("%s failed", self.name, exc_info=error)
        if not (self.trouble or self.is_closed):
            self._fail(f"it failed: {error!r}")

    def _fail(self, reason: str) -> None:
        self.trouble = reason
        logger.critical("%s stops: %s", self.name, reason)
        self._tell("replica_stopped", f"stops: {reason}")
        for member in self.replica.configuration.members:
            if member != self.member:
                # Replicas that sleep may believe that this one leads them.
                self._host.post(self, member, Rouse())
        self._end_requests()
        self.schedule()
        self._host.failed(self)
