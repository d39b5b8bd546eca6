"""A simulated machine: one process with one replica, a disk, a clock, and ways to fail.

It does for its replica what a broker does: carries out disk work strictly in order and after a
delay, sends messages to peers and answers to clients. A crash loses the process's memory and all
queued work; a supervisor starts the process again after a while.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from quivermq.batches import Index
from quivermq.errors import ConnectionFailed, Corrupt, StorageFailed, StorageFull
from quivermq.log import Log, LogSettings
from quivermq.replica import (
    Answer,
    Effect,
    Persist,
    Repair,
    Replica,
    ReplicaSettings,
    Result,
    SaveCheckpoint,
    Send,
    Token,
    blank_log,
    carry_out,
    found_log,
)
from quivermq.testing.simulated_disk import Faults, Killed, SimulatedDisk
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime
from tests.replica.simulation.consumer_service import ConsumerService, DeadLetterTopic
from tests.replica.simulation.network import Network
from tests.replica.simulation.node_clock import NodeClock
from tests.replica.simulation.process import Condition, DropBefore, FailureDetector, Process
from tests.replica.simulation.requests import (
    ChangeMembership,
    ClientRequest,
    NodeReply,
    Ping,
    Poll,
    PollReply,
    Produce,
    Settle,
    SettleReply,
)

if TYPE_CHECKING:
    from tests.replica.simulation.auditor import Auditor

LOG_ID: Final = b"simulated-quiver"
FOLDER: Final = "log/simulated/0"
RETRY_FULL_DISK_MS: Final = 300
RESTART_MS: Final = 500


@dataclass(slots=True)
class HostEnvironment:
    """The parts of the world that all hosts share."""

    time: VirtualTime
    network: Network
    story: Story
    log_settings: LogSettings
    replica_settings: ReplicaSettings
    auditor: "Auditor"
    nodes: Callable[[], Sequence[int]]
    """Every node that was not switched off for good."""
    dead_letters: DeadLetterTopic


class Host:
    """One machine."""

    def __init__(self, member: int, environment: HostEnvironment, dice: Random) -> None:
        self.member = member
        self.environment = environment
        self.dice = dice
        self.disk = SimulatedDisk(Random(dice.random()))
        self.clock = NodeClock(environment.time)
        self.condition = Condition()
        self._held: list[Callable[[], None]] = []
        """Actions that came due during a pause."""
        self.process: Process | None = None
        self.life = 0
        """Grows whenever a process ends: actions planned for that process do not happen."""
        self._boot = 0
        """Counts the starts that other nodes can notice."""
        self.is_lost = False
        """Too little is left on the disk: this member never comes back, and is to be replaced."""
        self.is_retired = False
        """Switched off for good: no longer a member."""

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def replica(self) -> Replica:
        """The running replica; ask `is_up` first."""
        if self.process is None:
            raise RuntimeError(f"node {self.member} is not running")
        return self.process.replica

    @property
    def log(self) -> Log:
        """The running replica's log; ask `is_up` first."""
        if self.process is None:
            raise RuntimeError(f"node {self.member} is not running")
        return self.process.log

    @property
    def detector(self) -> FailureDetector:
        """The running process's failure detector; ask `is_up` first."""
        if self.process is None:
            raise RuntimeError(f"node {self.member} is not running")
        return self.process.detector

    @property
    def has_disk_work(self) -> bool:
        return self.process is not None and bool(self.process.disk_queue)

    @property
    def standing(self) -> str:
        """Its state, for failure messages."""
        if self.process is None:
            return "lost" if self.is_lost else "down"
        replica = self.process.replica
        role = "leads" if replica.is_leader else f"follows {replica.leader}"
        repair = ", mending" if replica.is_repairing else ""
        return (
            f"{role} in term {replica.term}, commit {replica.commit_index}, applied "
            f"{replica.applied_index}, log {self.log.first_index} to "
            f"{self.log.edge.next_index - 1}{repair}, disk queue {len(self.process.disk_queue)}"
        )

    def found(self, members: tuple[int, ...]) -> None:
        """Make the log of a founding member. Once: an empty disk is no founding member."""
        self.disk.make_folder(FOLDER.rpartition("/")[0])
        found_log(self.disk, FOLDER, LOG_ID, members, self.environment.log_settings)

    def join(self) -> None:
        """Make the log of a member that will be added to a running cluster."""
        self.disk.make_folder(FOLDER.rpartition("/")[0])
        blank_log(self.disk, FOLDER, LOG_ID, self.environment.log_settings)

    def start(self) -> None:
        """Start the process from what is on the disk, unless it runs or has nothing to run from."""
        if not (self.is_up or self.is_lost or self.is_retired):
            self._begin(self._open)

    def _begin(self, opening: Callable[[], None]) -> None:
        try:
            opening()
        except Corrupt as error:
            self.is_lost = True
            self._tell(f"is lost: {error}")
        except Killed:
            self._die("killed while starting", RESTART_MS)
        except StorageFailed as error:
            self._die(f"cannot start: {error}", RESTART_MS)

    def _open(self) -> None:
        log = Log.open(self.disk, FOLDER, self.environment.log_settings)
        endless = [damage for damage in log.damage if damage.last_index is None]
        if endless:
            raise Corrupt(f"nothing tells what is missing: {endless[0]}")
        self._boot += 1
        self._run_on(log)

    def _run_on(self, log: Log) -> None:
        environment = self.environment
        replica = Replica(self.member, log, environment.replica_settings, self.dice)
        detector = FailureDetector(environment.replica_settings.election_ticks)
        self.process = Process(log, replica, detector, ConsumerService(self))
        repair = ", mending" if replica.is_repairing else ""
        self._tell(
            f"starts: term {replica.term}, applied {replica.applied_index}, "
            f"log {log.first_index} to {log.edge.next_index - 1}{repair}"
        )
        environment.auditor.note_start(self)
        self._later(self.dice.uniform(0, self._tick_ms()), self._tick)

    def _tick_ms(self) -> float:
        return self.clock.real_ms(self.environment.replica_settings.tick_ms)

    def _tick(self) -> None:
        self._later(self._tick_ms(), self._tick)
        if self.environment.replica_settings.sleep_ticks:
            self._look_after_peers()
        if not self.replica.is_asleep:
            self.replica.tick(self.clock.now_ms)
        if self.process is not None:
            self.process.service.tick()

    def _look_after_peers(self) -> None:
        """Send heartbeats and miss those of others, in place of a replica that sleeps."""
        peers = [node for node in self.environment.nodes() if node != self.member]
        unspoken, silent = self.detector.tick(peers)
        for peer in unspoken:
            self.environment.network.send(self.member, peer, Ping(self._boot))
        for peer in silent:
            self._wake_for(peer)

    def _wake_for(self, peer: int) -> None:
        if self.replica.is_asleep and self.replica.depends_on(peer):
            self.replica.wake()

    def crash(self, why: str, *, power: bool, down_ms: float) -> None:
        """End the process, and with `power` lose what the disk was not made to keep."""
        if power:
            self.disk.lose_power()
        self._die(f"{why}, down for {down_ms:.0f} ms", down_ms)

    def _die(self, why: str, down_ms: float) -> None:
        self._tell(why)
        self.life += 1
        self.process = None
        self.disk.kill()
        self.disk.faults.fail_operation = None
        life = self.life
        self.environment.time.after_ms(down_ms, lambda: self.start() if life == self.life else None)

    def give_up(self, why: str) -> None:
        """Declare the machine lost: the operator has to replace it."""
        self._tell(f"is given up: {why}")
        self.is_lost = True
        self.life += 1
        self.process = None

    def retire(self) -> None:
        """Switch the machine off for good."""
        self.is_retired = True
        self.life += 1
        self.process = None
        self._tell("is switched off for good")

    def heal(self) -> None:
        """End all faults of the machine, and start its process."""
        self.disk.faults = Faults()
        self.condition = Condition()
        self._resume()
        self.start()

    def pause(self, duration_ms: float) -> None:
        """Do nothing for a while, as a stopped process; then go on as if no time had passed."""
        until_us = self.environment.time.now_us + round(duration_ms * 1000)
        self.condition.paused_until_us = max(self.condition.paused_until_us, until_us)
        self.environment.time.after_ms(duration_ms, self._resume)

    def _resume(self) -> None:
        """Do everything that came due during a pause, in its order."""
        if not self.is_paused:
            held, self._held = self._held, []
            for action in held:
                self.environment.time.after_ms(0, action)

    def take(self, sender: int, mail: object) -> None:
        """Take a message from the network."""
        if self.process is None:
            if isinstance(mail, ClientRequest) and not self.is_paused:
                refusal = ConnectionFailed(f"node {self.member} is down")
                self.environment.network.send(self.member, sender, NodeReply(mail.token, refusal))
            return
        self._soon(lambda: self._take(sender, mail))

    def _take(self, sender: int, mail: object) -> None:
        self.environment.story.trace(f"{sender}>{self.member} {type(mail).__name__}")
        self.detector.hear(sender)
        if isinstance(mail, ClientRequest):
            self._answer(sender, mail)
        elif isinstance(mail, Ping):
            if self.detector.meet(sender, mail.boot):
                self._wake_for(sender)
        else:
            self.replica.receive(sender, mail)  # type: ignore[arg-type]

    def _answer(self, client: int, ask: ClientRequest) -> None:
        process = self.process
        if process is None or ask.token in process.askers:
            return
        process.askers[ask.token] = client
        self.environment.auditor.note_request(self, ask.token)
        request = ask.request
        if isinstance(request, Poll | Settle):
            refusal = process.service.ask(ask.token, request)
            if refusal is not None:
                self._reply(process, ask.token, refusal)
        elif isinstance(request, Produce):
            process.replica.produce(ask.token, request.frame, self.clock.now_ms)
        elif isinstance(request, ChangeMembership):
            process.replica.change_membership(ask.token, request.change)
        else:
            process.replica.read(ask.token)

    def read_all(self) -> None:
        """Read everything that is kept, to meet damage that no read has met yet."""
        self._soon(lambda: deque(self.log.frames(self.log.first_index), maxlen=0).clear())

    def transfer_leader(self, target: int) -> None:
        """Ask the replica to hand its leadership over."""
        self._soon(lambda: self.replica.transfer_leader(target))

    def drop_before(self, index: Index) -> None:
        """Retention: drop what lies before, in turn with the other disk work."""
        if self.process is not None:
            self.process.disk_queue.append(DropBefore(index))
            self._soon(self._work_on_disk)

    @property
    def is_paused(self) -> bool:
        return self.condition.paused_until_us > self.environment.time.now_us

    def _soon(self, action: Callable[[], None]) -> None:
        if self.condition.lag_ms or self.is_paused:
            self._later(self.condition.lag_ms, action)
        else:
            self._run(action)

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Let the process do something later: never after its death, nor while it is paused."""
        life = self.life

        def happen() -> None:
            if life != self.life:
                return
            if self.is_paused:
                self._held.append(happen)
            else:
                self._run(action)

        self.environment.time.after_ms(delay_ms, happen)

    def _run(self, action: Callable[[], None]) -> None:
        """Do one step of the process and its effects; failures of the disk are handled here."""
        if self.process is None:
            return
        try:
            action()
            self._dispatch(self.replica.take_effects())
            self.environment.auditor.note_step(self)
        except Killed:
            power = self.dice.random() < 0.5
            self.crash("killed in the middle of disk work", power=power, down_ms=RESTART_MS)
        except Corrupt as error:
            self._meet_damage(error)
        except StorageFailed as error:
            self._die(f"stops: {error}", RESTART_MS)

    def _meet_damage(self, error: Corrupt) -> None:
        """A read met damage: begin again on the same log, which knows what is damaged.

        A log that is opened anew would not know: it takes sealed segments by their footers.
        """
        log = self.log
        if not log.damage:
            self._die(f"stops: {error}", RESTART_MS)
            return
        self._tell(f"met damage: {error}")
        self.life += 1
        self.process = None
        self._begin(lambda: self._run_on(log))

    def _dispatch(self, effects: list[Effect]) -> None:
        process = self.process
        if process is None:
            return
        for effect in effects:
            if isinstance(effect, Send):
                self.environment.auditor.note_message(self, effect.to, effect.mail)
                process.detector.tell(effect.to)
                self.environment.network.send(self.member, effect.to, effect.mail)
            elif isinstance(effect, Answer):
                result = process.service.translate(effect.token, effect.result)
                if result is not None:
                    self._reply(process, effect.token, result)
            elif isinstance(effect, Persist | SaveCheckpoint | Repair):
                process.disk_queue.append(effect)
        self._work_on_disk()

    def _reply(
        self, process: Process, token: Token, result: Result | PollReply | SettleReply
    ) -> None:
        self.environment.auditor.note_answer(self, token)
        self.environment.network.send(
            self.member, process.askers.pop(token), NodeReply(token, result)
        )

    def _work_on_disk(self) -> None:
        """Begin the next piece of disk work, if there is one and none is under way."""
        process = self.process
        if process is None or process.is_writing or not process.disk_queue:
            return
        process.is_writing = True
        self._begin_writing()

    def _begin_writing(self) -> None:
        # The bytes may reach the disk at any moment between the call and its return; a crash in
        # between finds them there, or not.
        early = self.dice.random() < 0.5
        if early and not self._write():
            return
        condition = self.condition
        duration_ms = self.dice.uniform(condition.disk_ms_min, condition.disk_ms_max)
        self._later(duration_ms, lambda: self._end_writing(is_written=early))

    def _end_writing(self, *, is_written: bool) -> None:
        process = self.process
        if process is None or not (is_written or self._write()):
            return
        work = process.disk_queue.popleft()
        process.is_writing = False
        if isinstance(work, Persist):
            process.replica.persisted(work.number)
        elif isinstance(work, Repair):
            process.replica.repaired()

    def _write(self) -> bool:
        """Do the work at the head of the queue; False if it must wait for space."""
        process = self.process
        if process is None:
            return False
        work = process.disk_queue[0]
        self.environment.auditor.note_write(self, work)
        try:
            if isinstance(work, DropBefore):
                self._drop(process, work.index)
            else:
                carry_out(process.log, work)
        except StorageFull:
            self._tell("has no space left")
            self._later(RETRY_FULL_DISK_MS, self._begin_writing)
            return False
        self.environment.auditor.note_written(self, work)
        return True

    def _drop(self, process: Process, index: Index) -> None:
        first = process.log.first_index
        end = min(index, Index(process.replica.applied_index + 1))
        self.environment.auditor.note_drop(self, end)
        try:
            kept = process.log.drop_before(end)
        except Corrupt as error:
            self._tell(f"keeps what it should drop: {error}")
            return
        if kept != first:
            self.environment.story.counts["drops"] += 1
            self._tell(f"drops entries {first} to {kept - 1}")

    def _tell(self, text: str) -> None:
        self.environment.story.tell(f"node {self.member} {text}")
