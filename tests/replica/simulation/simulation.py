"""Runs one seed: first faults, then healing, then the final checks.

    outcome = Simulation(seed=7).run()

While faults strike, every guarantee must hold. Then everything heals, and the cluster has to serve
again within a stated time, to bring every replica to the same state, and to show that nothing
acknowledged was lost. The same seed is the same run, event for event.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Final

from quivermq.log import LogSettings
from quivermq.replica import ReplicaSettings
from quivermq.testing import Violation
from tests.replica.simulation.checkers import ReplicaContents
from tests.replica.simulation.clients import (
    ClientEnvironment,
    SimulatedProducer,
    SimulatedReader,
)
from tests.replica.simulation.consumers import GROUPS, SimulatedConsumer
from tests.replica.simulation.faults import YEAR_MS, FaultContext, Nemesis
from tests.replica.simulation.host import Host
from tests.replica.simulation.operator import Operator
from tests.replica.simulation.world import World

SERVING_MS_MAX: Final = 8_000
"""I9: after healing, a batch made from then on is acknowledged within this time."""
SETTLING_MS_MAX: Final = 60_000
"""And all replicas are sound and equal within this one."""
MENDING_MS_MAX: Final = 15_000
"""A damaged replica that could not be mended by then is replaced."""
SLEEPING_MS_MAX: Final = 20_000
"""The replicas of a settled partition that is not used are asleep by then."""
SLEPT_MS: Final = 5_000
ANSWER_MS_MAX: Final = 4_000
"""No request waits longer than this for its answer in a cluster that serves."""
DRAINING_MS_MAX: Final = 60_000
"""Consumers that fail at nothing but poison have finished everything by then."""
CLOCKS_WRONG_MS_MAX: Final = 100 * YEAR_MS
"""No clock was ever further ahead: each jumps by a year at most, and not a hundred times."""
CHECK_MS: Final = 250
STORY_LINES: Final = 30

_FIRST_PRODUCER, _READER, _OPERATOR, _FIRST_CONSUMER = -1, -100, -200, -300
_LATE_PRODUCER_ID: Final = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    virtual_ms: int
    events: int
    digest: str
    """A hash of every event: equal for equal runs."""
    faults: Counter[str]
    counts: Counter[str]
    failure: str = ""
    """The error, with the end of the story; empty if the seed passed."""


class Simulation:
    """One seed, run once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = Random(seed)
        self._dice = dice
        size = dice.choice((1, 3, 3, 3, 5, 5))
        self.world = World(dice, size, draw_log_settings(dice), draw_replica_settings(dice))
        voters = self.world.auditor.voters
        fragile = tuple(sorted(dice.sample(voters, (size - 1) // 2)))
        operator = Operator(_OPERATOR, self.world, Random(dice.random()), fragile)
        self.world.add_client(operator)
        self._operator = operator
        self._producers: list[SimulatedProducer] = []
        self._consumers: list[SimulatedConsumer] = []
        self._clocks_ms = 0
        self._environment = ClientEnvironment(
            self.world.time,
            self.world.network,
            self.world.story,
            self.world.auditor,
            self._nodes,
            lambda: self.world.is_quiet,
        )
        self._reader = SimulatedReader(_READER, self._environment, Random(dice.random()))
        self.world.add_client(self._reader)
        self._context = FaultContext(self.world, Random(dice.random()), operator, fragile)

    def run(self) -> Outcome:
        """Run all phases; raises `Violation` or `BrokenInvariant` with the story as a note."""
        try:
            self._suffer()
            self._heal()
            self._look_after()
            self._demand_service()
            self._drain()
            self._settle()
            if self.world.environment.replica_settings.sleep_ticks:
                self._sleep_and_wake()
            self._check_end()
        except Exception as error:
            error.add_note(self.story())
            raise
        return self.outcome()

    def outcome(self, failure: str = "") -> Outcome:
        story = self.world.story
        time = self.world.time
        return Outcome(
            self.seed, time.now_ms, time.events, story.digest, story.faults, story.counts, failure
        )

    def story(self) -> str:
        """The state and the last events, for a failure message."""
        leader = self.world.leader
        return "\n".join(
            (
                f"seed {self.seed}, {len(self.world.auditor.voters)} voters, at "
                f"{self.world.time.now_ms} ms, led by "
                + (f"node {leader.member} in term {leader.replica.term}" if leader else "no node"),
                f"faults: {self._nemesis.names}",
                f"struck: {dict(self.world.story.faults)}",
                self.world.story.last(STORY_LINES),
            )
        )

    def _nodes(self) -> list[int]:
        return self.world.nodes

    def _suffer(self) -> None:
        """Let clients work while faults strike."""
        self._nemesis = Nemesis(self._context)
        duration_ms = self._dice.randint(15_000, 35_000)
        for number in range(self._dice.randint(1, 4)):
            self._add_producer(producer_id=number + 1, epoch=0)
        if self._dice.random() < 0.4:
            # F27: a newer producer with the id of the first one, which goes on.
            start_ms = self._dice.uniform(1_000, duration_ms)
            self.world.time.after_ms(start_ms, lambda: self._add_producer(1, epoch=1))
        for number in range(self._dice.choice((0, 1, 2, 4))):
            dice = Random(self._dice.random())
            group = dice.choice(GROUPS)
            consumer = SimulatedConsumer(_FIRST_CONSUMER - number, self._environment, dice, group)
            self.world.add_client(consumer)
            self._consumers.append(consumer)
        self.world.time.run_for_ms(duration_ms)

    def _add_producer(self, producer_id: int, epoch: int) -> None:
        address = _FIRST_PRODUCER - len(self._producers)
        dice = Random(self._dice.random())
        producer = SimulatedProducer(address, self._environment, dice, producer_id, epoch)
        self.world.add_client(producer)
        self._producers.append(producer)

    def _heal(self) -> None:
        """End all faults of machines and network, and start all processes."""
        world = self.world
        self._nemesis.stop()
        world.network.heal()
        world.quiet_until_ms = 0
        world.environment.dead_letters.is_available = True
        restarts_all = self._dice.random() < 0.5
        world.story.tell("healing" + (", all restart" if restarts_all else ""))
        self._healed_at_ms = world.time.now_ms
        for host in world.hosts.values():
            host.heal()
            if restarts_all and host.is_up:
                host.crash("restarts", power=False, down_ms=0)

    def _demand_service(self) -> None:
        """I9: a batch made after healing is acknowledged in time."""
        served = self.world.time.run_for_ms(SERVING_MS_MAX, self._serves)
        if not served and not all(producer.is_fenced for producer in self._producers):
            raise Violation(
                f"I9: not serving {SERVING_MS_MAX} ms after healing: {self._standing()}"
            )
        self.world.story.tell("serves again")

    def _serves(self) -> bool:
        return any(p.acked_made_at_ms >= self._healed_at_ms for p in self._producers)

    def _look_after(self) -> None:
        """Have the operator replace members that cannot be mended, and finish changes."""
        world = self.world
        if world.time.now_ms - self._healed_at_ms > MENDING_MS_MAX:
            for host in world.running:
                if host.replica.is_repairing:
                    world.story.counts["given up"] += 1
                    host.give_up("it could not be mended")
        self._operator.tidy()
        self._set_clocks()
        world.time.after_ms(CHECK_MS, self._look_after)

    def _drain(self) -> None:
        """Stop producing; consumers must finish every message that is left."""
        for producer in self._producers:
            producer.is_stopped = True
        world = self.world
        # Messages that a wrong clock postponed become due.
        latest_ms = max(host.clock.now_ms for host in world.hosts.values())
        self._clocks_ms = latest_ms + CLOCKS_WRONG_MS_MAX
        self._set_clocks()
        for consumer in self._consumers:
            consumer.is_sweeping = True
        if not world.time.run_for_ms(DRAINING_MS_MAX, self._is_drained):
            raise Violation(f"I5: not drained in {DRAINING_MS_MAX} ms: {self._backlog()}")
        leader = world.leader
        for group in {consumer.group: 0 for consumer in self._consumers}:
            letters = world.environment.dead_letters.letters.get(group, [])
            if leader is not None:
                world.auditor.check_drained(group, leader.replica.edge.next_offset, letters)
            world.story.counts["dead letters"] += len(letters)
        for consumer in self._consumers:
            consumer.is_stopped = True

    def _set_clocks(self) -> None:
        """Set every clock that is behind, also those of machines that come later."""
        for host in self.world.hosts.values():
            if host.clock.now_ms < self._clocks_ms:
                host.clock.jump(self._clocks_ms - host.clock.now_ms)

    def _is_drained(self) -> bool:
        leader = self.world.leader
        if leader is None or not all(producer.is_done for producer in self._producers):
            return False
        groups, end = leader.replica.groups, leader.replica.edge.next_offset
        for consumer in self._consumers:
            found = groups.by_name.get(consumer.group) if groups else None
            if found is None or found.floor < end or found.dying:
                return False
        return leader.replica.is_serving

    def _backlog(self) -> str:
        leader = self.world.leader
        groups = leader.replica.groups if leader else None
        return "; ".join(
            f"{group.name} is at {group.floor}, leases {list(group.leases)}, dying "
            f"{list(group.dying)}, waiting {group.waiting.parked()[:5]}"
            for group in (groups.by_name.values() if groups else ())
        )

    def _settle(self) -> None:
        """Stop producing; all batches must be acknowledged, all replicas become equal."""
        for producer in self._producers:
            producer.is_stopped = True
        self._reader.is_stopped = True
        time = self.world.time
        end_ms = time.now_ms + SETTLING_MS_MAX
        lives: dict[int, int] = {}
        while lives != self._lives() or not self._is_settled():
            if not time.run_for_ms(end_ms - time.now_ms, self._is_settled):
                raise Violation(f"I9: not settled in {SETTLING_MS_MAX} ms: {self._standing()}")
            lives = self._lives()
            for host in self._members():
                host.read_all()
            # A node that met damage in that restarts; the others answer what they owe.
            time.run_for_ms(ANSWER_MS_MAX)
        self.world.story.tell("settled")

    def _is_settled(self) -> bool:
        leader = self.world.leader
        if leader is None or not all(producer.is_done for producer in self._producers):
            return False
        end = leader.replica.commit_index
        return self._operator.is_tidy and all(
            host.is_up
            and not host.replica.is_repairing
            and host.replica.applied_index == end
            and not host.has_disk_work
            for host in self._members()
        )

    def _sleep_and_wake(self) -> None:
        """Without requests all replicas must fall asleep, and stay so. Then they must serve again,
        perhaps after a fault of one of them."""
        time = self.world.time
        if not time.run_for_ms(SLEEPING_MS_MAX, self._sleeps):
            raise Violation(f"awake {SLEEPING_MS_MAX} ms after settling: {self._standing()}")
        if time.run_for_ms(SLEPT_MS, lambda: not self._sleeps()):
            raise Violation(f"disturbed in its sleep: {self._standing()}")
        self.world.story.tell("sleeps")
        host = self._dice.choice(self._members())
        fate = self._dice.choice(("none", "killed", "loses power", "paused"))
        # Where the others are no majority, they can only wait for it.
        longest_ms = SERVING_MS_MAX if len(self._members()) > 2 else 1_000
        if fate == "paused":
            host.pause(self._dice.uniform(0, longest_ms))
        elif fate != "none":
            down_ms = self._dice.choice((0, 500, longest_ms))
            host.crash(f"{fate} in its sleep", power=fate == "loses power", down_ms=down_ms)
        self._healed_at_ms = time.now_ms
        self._add_producer(_LATE_PRODUCER_ID, epoch=0)
        self._demand_service()
        self._settle()

    def _sleeps(self) -> bool:
        return all(host.is_up and host.replica.is_asleep for host in self._members())

    def _members(self) -> list[Host]:
        return [self.world.hosts[member] for member in self.world.auditor.members]

    def _lives(self) -> dict[int, int]:
        return {host.member: host.life for host in self._members()}

    def _standing(self) -> str:
        """The state of every node."""
        return "; ".join(
            f"node {host.member} {host.standing}"
            for host in self.world.hosts.values()
            if not host.is_retired
        )

    def _check_end(self) -> None:
        """Read every member's log from its disk, and check it against all guarantees."""
        auditor = self.world.auditor
        auditor.one_answer.check(self._lives())
        copies = []
        for host in self._members():
            host.replica.validate()
            log = host.log
            end = host.replica.edge.next_index
            frames = list(log.frames(log.first_index, end))
            copies.append(ReplicaContents(host.member, host.replica.edge.next_offset, frames))
        auditor.check_end(copies)


def draw_log_settings(dice: Random) -> LogSettings:
    """Small segments, so that rolling, checkpoints and transfers happen all the time."""
    return LogSettings(
        segment_bytes=dice.choice((8, 16, 32)) << 10,
        allocation_bytes_min=dice.choice((1, 4)) << 10,
        allocation_bytes_step=dice.choice((1, 8)) << 10,
        open_segments_max=dice.randint(1, 3),
    )


def draw_replica_settings(dice: Random) -> ReplicaSettings:
    """The usual intervals; small messages, so that transfers take several; often light sleep."""
    return ReplicaSettings(
        message_bytes_max=dice.choice((1 << 10, 8 << 10, 1 << 20)),
        sleep_ticks=dice.choice((0, 0, 1, 3, 10)),
    )


def run_seed(seed: int) -> Outcome:
    """Run a seed; a failure becomes part of the outcome."""
    simulation = Simulation(seed)
    try:
        return simulation.run()
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return simulation.outcome(f"{type(error).__name__}: {error}\n{notes}")
