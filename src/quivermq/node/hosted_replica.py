"""A replica at work on this broker: its inputs, its disk work, its mail and who waits for it.

Runs on the event loop, and never waits there. Inputs mark the replica as stirred; the crew then
lets all stirred replicas go on at once, so that what came in together is written and sent together.
"""

import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from quivermq.batches import Frame, Offset
from quivermq.batches.limits import KIB
from quivermq.cluster import METADATA_PARTITION
from quivermq.errors import (
    BrokenInvariant,
    NotLeader,
    QuiverError,
    Timeout,
)
from quivermq.log import Log
from quivermq.node.crew import Crew
from quivermq.node.disk_work import Drop, Opened, Work, do_disk_work, waits_for_no_disk
from quivermq.node.group_names import PartitionName
from quivermq.node.replica_halts import STUMBLES, ReplicaHalts
from quivermq.queue import LeaseManager
from quivermq.replica import (
    Answer,
    Effect,
    Mail,
    Persist,
    Repair,
    Replica,
    Result,
    SaveCheckpoint,
    Send,
    Wake,
)

logger = logging.getLogger("quivermq.replica")

RETRY_FULL_DISK_S: Final = 0.5
_PACKED_IN_TURN_BYTES_MAX: Final = 256 * KIB
"""A state that is larger is packed where nobody's write waits for it."""
_CAMPAIGN_TICKS: Final = frozenset({1, 2, 4, 7})
_Input = ParamSpec("_Input")
T = TypeVar("T")
Done = Callable[[Result], None]


class HostedReplica(ReplicaHalts):
    """One replica, its log, and everything that waits for either."""

    def __init__(
        self,
        partition_id: bytes,
        name: PartitionName,
        member: int,
        found: Opened,
        host: Crew,
        *,
        is_preferred: bool = False,
    ) -> None:
        self.id = partition_id
        self.name = name
        self.member = member
        self.is_preferred = is_preferred
        """Whether this replica should lead if nobody does."""
        self.log = found.log
        self._host = host
        self.replica = self._replica(found.state)
        self.trouble = ""
        """Not "": it does not run, and why."""
        self._refusal: QuiverError | None = None
        """While it does not run, and what was applied can still be read: the answer to the rest."""
        self.incarnation = 0
        """Counts the replicas that the scheduler was given."""
        self.is_stirred = False
        self.was_serving = False
        self.leaderless_ticks = 0
        self.after: Callable[[], None] | None = None
        """Called whenever something may have been applied."""
        self._tokens = 0
        self._waiting: dict[int, Done] = {}
        self._disk_queue: list[Work] = []
        self._writing: list[Work] = []
        self._readers: dict[object, Callable[[], None]] = {}
        # Grows when the replica is made anew: disk work of the one before reports to nobody.
        self._life = 0
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
            # What `_step` does, which every batch would pay for.
            try:
                self.replica.produce(token, frame, self._host.now_ms())
            except STUMBLES as error:
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

    def with_leases(self, act: Callable[[LeaseManager], T], done: Done | None = None) -> T:
        """Serve a consumer: what `act` returns, or raises; `NotLeader` where nobody is served.

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
                self._stumbled(error)
            raise
        finally:
            if done is None:
                self._host.stirred_later(self)
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
            replica = self.replica
            self.leaderless_ticks = 0 if replica.leader else self.leaderless_ticks + 1
            self._step(replica.tick, self._host.now_ms())
            if self.leaderless_ticks in _CAMPAIGN_TICKS:
                self.campaign()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody has led for so long that a majority must be missing."""
        return self.leaderless_ticks > self._host.replica_settings.election_ticks

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
            # Lease operations that wait are proposed before the leadership goes.
            self.go_on()
            self._step(self.replica.transfer_leader, target)

    def _step(
        self, act: Callable[_Input, object], *args: _Input.args, **rest: _Input.kwargs
    ) -> None:
        """An input to the replica, which may stumble over its log, or over itself."""
        try:
            act(*args, **rest)
        except STUMBLES as error:
            self._stumbled(error)
        else:
            self.stir()

    def drop_before(self, plan: Callable[[Log], object]) -> None:
        """Retention: in turn with the other disk work; nothing while some is under way."""
        if self.trouble or self.is_closed or self.replica.is_repairing:
            return
        if not any(isinstance(piece, Drop) for piece in (*self._writing, *self._disk_queue)):
            self._disk_queue.append(Drop(plan))
            self._write_next()

    def now_ms(self) -> int:
        return self._host.now_ms()

    def steady_ms(self) -> int:
        return self._host.steady_ms()

    def lapses(self) -> int:
        """How often this broker stood still for longer than others wait for a leader."""
        return self._host.lapses()

    @property
    def election_s(self) -> float:
        """How long others wait for a leader before they look for another, at least."""
        settings = self._host.replica_settings
        return settings.tick_ms * settings.election_ticks / 1000

    def stir(self) -> None:
        if not self.is_stirred:
            self.is_stirred = True
            self._host.stirred(self)

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

    # What follows.

    def go_on(self) -> None:
        """Carry out everything that follows from the inputs since the last time."""
        self.is_stirred = False
        if self.trouble or self.is_closed:
            return
        try:
            effects = self.replica.take_effects()
        except STUMBLES as error:
            self._stumbled(error)
            return
        self._dispatch(effects)
        self._write_next()
        if self._has_halted():
            # What was written at once has failed: the replica's leadership has ended with it.
            return
        if self.replica.is_behind:
            self.stir()
        if self.replica.is_serving != self.was_serving:
            self.was_serving = self.replica.is_serving
            self._host.leadership_changed(self)
            # Who waits here may have to go elsewhere.
            self._wake_readers()
        if self.after is not None:
            self.after()

    def _dispatch(self, effects: list[Effect]) -> None:
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

    def _pack(self, work: SaveCheckpoint) -> None:
        """Have a state packed aside if it is large, and then written in turn with all else.

        Nobody waits for it; while one is being packed, the next is left out.
        """
        if work.state.size_bytes <= _PACKED_IN_TURN_BYTES_MAX:
            self._disk_queue.append(work)
            return
        if self._is_packing:
            return
        self._is_packing = True
        life = self._life

        def packed(result: object) -> None:
            self._is_packing = False
            if life != self._life or self.is_closed:
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
                self._write_next()

        self._host.aside(work.state.pack, packed)

    def _write_next(self) -> None:
        """Hand the gathered disk work over, unless some is under way."""
        if self._writing or not self._disk_queue or self.is_closed:
            return
        self._writing, self._disk_queue = self._disk_queue, []
        work, log, life = self._writing, self.log, self._life
        if self._host.writes_inline and waits_for_no_disk(work):
            try:
                result: object = do_disk_work(log, work)
            except Exception as error:
                result = error
            self._written(result, life)
        else:
            self._in_disk_thread(
                lambda: do_disk_work(log, work), lambda result: self._written(result, life)
            )

    def _has_halted(self) -> bool:
        return bool(self.trouble) or self.is_closed

    def _in_disk_thread(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        self._host.write(self, job, done)

    def _post(self, to: int, mail: Mail) -> None:
        self._host.post(self, to, mail)

    def _stop_ticking(self) -> None:
        self._host.failed(self)

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
                    self.log.forget_checkpoint()
                    if not self.replica.is_repairing:
                        logger.warning("%s is mended, and takes part again", self.name)
        except STUMBLES as error:
            self._stumbled(error)
            return
        self._writing = self._writing[result:]
        if self._writing:
            # What is left comes again, in front of everything else: the log is as it was.
            logger.warning("%s: the disk is full", self.name)
            self._host.later(RETRY_FULL_DISK_S, lambda: self._retry(life))
        self.stir()

    def _retry(self, life: int) -> None:
        if life == self._life and not self.is_closed:
            work = self._writing + self._disk_queue
            # What makes room goes first, or the disk would stay full for ever.
            drops = [piece for piece in work if isinstance(piece, Drop)]
            self._disk_queue = drops + [piece for piece in work if not isinstance(piece, Drop)]
            self._writing = []
            self._write_next()

    def _end_requests(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(Timeout(f"{self.name} was interrupted: the outcome is unknown; try again"))
        self._wake_readers()
        if self.was_serving:
            self.was_serving = False
            self._host.leadership_changed(self)

    @property
    def is_writing(self) -> bool:
        return bool(self._writing or self._disk_queue)

    def close(self) -> None:
        """End everything that waits. The log may be removed once the disk thread is idle."""
        if not self.is_closed:
            self.is_closed = True
            self._life += 1
            self._end_requests()
