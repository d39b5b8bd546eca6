"""Runs one seed: users work while faults strike a cluster; it heals, and is checked.

    outcome = Simulation(seed=7).run()

The brokers, transports and clients are those of production, on virtual time. While faults strike,
every guarantee must hold. Then everything heals; the cluster has to serve within a stated time, the
consumers finish all messages, and the logs of all brokers hold what was acknowledged. The same seed
is the same run, byte for byte.
"""

import asyncio
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import quivermq.aio
from quivermq.client import AsyncClient, DeadLetter
from quivermq.cluster import FEATURE_LEVEL_MIN
from quivermq.errors import Corrupt, QuiverError, TopicNotFound
from quivermq.log import Log
from quivermq.testing import Violation
from quivermq.testing.simulation.accounts import Accounts, GuestUser
from quivermq.testing.simulation.cluster import SimulatedBroker, SimulatedCluster
from quivermq.testing.simulation.faults import (
    DRIFT,
    LOSING_WHAT_IS_NOT_SYNCED,
    YEAR_US,
    FaultContext,
    Nemesis,
    odd_clock,
)
from quivermq.testing.simulation.gateways import Gateways
from quivermq.testing.simulation.http_users import HTTP_PORT, HttpUsers
from quivermq.testing.simulation.operating_user import (
    founded_at,
    raise_level,
)
from quivermq.testing.simulation.replica_checks import ReplicaChecks
from quivermq.testing.simulation.served_machine import ServedMachine
from quivermq.testing.simulation.stages import MakeUser, Stages
from quivermq.testing.simulation.witnesses import RankedUser, lift_limits
from quivermq.testing.simulation.work_budget import WorkBudget
from quivermq.testing.trials.client_trial import stored_batches
from quivermq.testing.trials.consumer_trial import letters_of
from quivermq.testing.trials.group_history import Letter, Original
from quivermq.testing.trials.history import ReplicaCopy, TopicPartition
from quivermq.testing.trials.users import (
    DrainingUser,
    Records,
    SentValues,
    Stage,
    StickyDrainingUser,
    User,
)
from quivermq.testing.virtual import (
    Process,
    SimulatedMachine,
    VirtualNetwork,
    World,
    sandbox,
    silently,
    without_collection,
)
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime

STARTING_MS_MAX: Final = 30_000
SERVING_MS_MAX: Final = 30_000
"""I9: so long after everything has healed, all brokers are ready."""
MENDING_MS: Final = 10_000
"""A broker with a damaged disk that is not whole by then is replaced."""
ELECTING_MS: Final = 5_000
"""But for a topic that was made a moment ago, and has no leader yet."""
DRAINING_MS_MAX: Final = 120_000
"""And so long after that, every message is consumed, and every call of a client has ended."""
CLOCKS_WRONG_US_MAX: Final = 100 * YEAR_US
"""No clock was ever further ahead: each jumps by a year at most, and not a hundred times."""
COUNTED: Final = 10
"""In the last of so many seeds the work of brokers is counted: it takes 2.5 times as long."""
ZONED: Final = 7
"""One seed of so many has brokers in two zones, and users who read in theirs."""
UPGRADED: Final = 8
"""Of so many seeds, one begins at an earlier feature level, which a user raises."""
SYNCED_LATER: Final = 11
"""Of so many seeds, one has brokers that acknowledge before they sync, and topics with one replica:
they write at once (decision 0067)."""
STORY_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    virtual_ms: int
    events: int
    digest: str
    """A hash of every event, and of every byte on the network: equal for equal runs."""
    faults: Counter[str]
    counts: Counter[str]
    failure: str = ""
    """The error, with the end of the story; empty if the seed passed."""
    users: int = 0
    most_calls: int = 0
    """Of the callback of a broker that made most of them; 0: they were not counted."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Faults and users that a run leaves out of its seed."""

    faults: frozenset[str] = frozenset()
    users: frozenset[int] = frozenset()
    """By their numbers."""


class Simulation:
    """One seed, run once."""

    def __init__(self, seed: int, left_out: LeftOut | None = None) -> None:
        self.seed = seed
        self.left_out = left_out or LeftOut()
        self.dice = dice = Random(seed)
        time = VirtualTime()
        story = Story(time)
        network = VirtualNetwork(time, Random(dice.random()), story)
        self.world = World(time, story, network, [])
        size = dice.choice((1, 3, 3, 3, 5))
        self.accounts = accounts = Accounts(self.world, seed)
        self._is_zoned = seed % ZONED == ZONED - 1
        self._syncs_later = seed % SYNCED_LATER == SYNCED_LATER - 1
        self.http = HttpUsers(seed)
        if self.http.are_on:
            network.sound_ports = frozenset({HTTP_PORT})
        self.cluster = SimulatedCluster(
            self.world, dice, size, _settings(dice), self._server_settings
        )
        servers = self.cluster.servers
        self.stages = Stages(self.world, servers, dice)
        self.gateways = Gateways(self.world, seed, servers, self._server_settings)
        if accounts.are_on:
            self.stages.add(accounts.join(servers, self.cluster.know, self.gateways.know))
        self.budget = WorkBudget() if seed % COUNTED == COUNTED - 1 else None
        self._is_upgraded = seed % UPGRADED == UPGRADED - 1
        self._machines = 0
        self._users: dict[SimulatedMachine, User] = {}
        self._makers: dict[SimulatedMachine, MakeUser] = {}
        self.makers: list[tuple[MakeUser, float]] = []
        self._made = 0
        self._leaving: set[int] = set()
        """Brokers that are being removed."""
        self._nemesis: Nemesis | None = None
        self._checks = ReplicaChecks()

    def _server_settings(self, host: str) -> dict[str, object]:
        """Of a broker or a gateway."""
        zone = {"zone": _zone_of(host)} if self._is_zoned else {}
        fsync = {"fsync": "interval"} if self._syncs_later else {}
        return self.accounts.settings | self.http.listen(host) | zone | fsync

    def run(self) -> Outcome:
        """Run all phases; raises `Violation` with the story as a note."""
        with ExitStack() as stack:
            stack.enter_context(sandbox())
            # Checks of replicas at work would count as work of brokers.
            stack.enter_context(self._checks.watching() if self.budget is None else self.budget)
            stack.enter_context(without_collection())
            if self._is_upgraded:
                stack.enter_context(founded_at(FEATURE_LEVEL_MIN))
            try:
                self._start()
                self._suffer()
                self._heal()
                self._drain()
                self._check()
            except Exception as error:
                error.add_note(self.story())
                raise
            finally:
                self._end()
        return self.outcome()

    def _end(self) -> None:
        """Forget all processes. What their tasks do when they are closed does not matter."""
        for served in self._served():
            served.machine.kill()
        for machine in self._users:
            machine.kill()

    def outcome(self, failure: str = "") -> Outcome:
        story, time = self.world.story, self.world.time
        return Outcome(
            self.seed,
            time.now_ms,
            time.events,
            story.digest,
            story.faults,
            story.counts,
            failure,
            len(self.makers),
            self.budget.most if self.budget is not None else 0,
        )

    def story(self) -> str:
        """The state and the last events, for a failure message."""
        return "\n".join(
            (
                f"seed {self.seed} at {self.world.time.now_ms} ms: {self._standing}",
                f"faults: {self._nemesis.names if self._nemesis else 'none yet'}",
                f"struck: {dict(self.world.story.faults)}",
                f"counts: {dict(self.world.story.counts)}",
                self.world.story.last(STORY_LINES),
            )
        )

    @property
    def _standing(self) -> str:
        return self.cluster.standing + self.gateways.standing

    # Phases.

    def _start(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.start()
        self._until(lambda: self.cluster.is_ready, STARTING_MS_MAX, "I9: it did not start")
        if self.accounts.are_on:
            # By this name brokers take it for a caller of their own machine.
            self._do(self._make_root, STARTING_MS_MAX, "localhost")
        self.gateways.start()
        self._until(lambda: self.gateways.is_ready, STARTING_MS_MAX, "I9: no gateway started")
        replication = 1 if self._syncs_later else min(3, len(self.cluster.brokers))

        async def create() -> None:
            async with self._connect() as client:
                await self.stages.create_topics(client, replication)
                if self.accounts.are_on:
                    await self.accounts.make_all(client, self.stages.topics, replication)

        self._do(create, STARTING_MS_MAX)

    async def _make_root(self) -> None:
        async with self._connect() as client:
            await self.accounts.make_root(client)

    def _suffer(self) -> None:
        nodes = list(self.cluster.brokers)
        # One: of a partition with three replicas, two are a majority.
        fragile = tuple(self.dice.sample(nodes, int(len(nodes) > 1)))
        context = FaultContext(
            self.cluster,
            Random(self.dice.random()),
            self._kill_user,
            self._remove_broker,
            fragile,
            self.gateways.all,
        )
        self._context = context
        self._nemesis = Nemesis(context, self._is_kept)
        for stage in self.stages.all:
            stage.has_right_clocks = odd_clock not in self._nemesis.chosen
        self.makers = self.stages.draw_users(self.dice, is_upgraded=self._is_upgraded)
        self.makers += self.accounts.draw_users() + self.http.draw_users()
        for number, (make, chance) in enumerate(self.makers):
            if number not in self.left_out.users:
                self._add_user(make, Random(chance))
        self._run_for(self.dice.randint(15_000, 35_000))

    def _is_kept(self, fault: str) -> bool:
        is_too_much = self._syncs_later and fault in LOSING_WHAT_IS_NOT_SYNCED
        return not (is_too_much or fault in self.left_out.faults)

    def _heal(self) -> None:
        self._context.is_over = True
        world = self.world
        restarts_all = self.dice.random() < 0.5
        world.story.tell("healing" + (", all restart" if restarts_all else ""))
        world.network.heal()
        for gateway in self.gateways.all:
            gateway.heal()
        for broker in self.cluster.brokers.values():
            broker.heal()
            if restarts_all or broker.has_failed_disk or broker.refusal:
                broker.crash(power=False, down_ms=100.0)
        self._run_for(200)
        for broker in self.cluster.brokers.values():
            broker.start()
        self.gateways.start()
        self._replace_damaged()
        self._until(lambda: not self._leaving, SERVING_MS_MAX, "I9: a broker is not removed")
        self._until(
            lambda: self.cluster.is_ready, SERVING_MS_MAX, "I9: not all brokers are ready in time"
        )
        self._until(
            lambda: self.gateways.is_ready, SERVING_MS_MAX, "I9: not all gateways are ready in time"
        )
        world.story.tell("serves again")

    def _replace_damaged(self) -> None:
        """As an operator would: a broker whose disk was damaged, and that cannot mend it."""
        fragile = [self.cluster.brokers[node] for node in self._context.fragile]
        self._until(
            lambda: all(b.is_ready for b in self.cluster.brokers.values() if b not in fragile),
            SERVING_MS_MAX,
            "I9: not all brokers with sound disks are ready in time",
        )
        self._run_for(MENDING_MS)
        for broker in fragile:
            if self._comes_true(broker.is_whole, ELECTING_MS):
                continue
            self.world.story.tell(f"broker {broker.node} is replaced: {broker.standing}")
            self.world.story.counts["brokers replaced"] += 1
            broker.machine.kill()
            broker.machine.disk.lose_all()
            broker.start()
            self._do(partial(self._replace, broker.node), SERVING_MS_MAX)
            self._until(
                broker.is_whole,
                SERVING_MS_MAX,
                f"I9: broker {broker.node} is not whole after it was replaced",
            )

    async def _replace(self, node: int) -> None:
        async with self._connect() as client:
            while True:
                try:
                    await client.replace_broker(node)
                except QuiverError as error:
                    # For a moment the others take the one that was killed for alive.
                    self.world.story.tell(f"broker {node} is not replaced yet: {error}")
                    await asyncio.sleep(1.0)
                else:
                    return

    def _drain(self) -> None:
        main = self.stages.main
        for stage in self.stages.all:
            stage.is_over = True
        # What a clock that was ahead postponed becomes due.
        if not main.has_right_clocks:
            for broker in self.cluster.brokers.values():
                broker.machine.clock.jump(CLOCKS_WRONG_US_MAX)
        self._until(
            lambda: all(user.is_done for user in self._users.values()),
            DRAINING_MS_MAX,
            "I9: calls of clients do not end",
        )
        self._check_rates()
        if self.accounts.are_on:
            self._do(self._examine, DRAINING_MS_MAX)
        if self.stages.redriven is not None:
            self._drain_by(self.stages.redriving_drainer())
            judged = self.stages.redriven.judged
            self.world.story.counts["messages judged as put back once"] = judged
        for topic in main.topics:
            self._drain_by(RankedUser(main, f"ranked {topic}", Random(self.dice.random()), topic))
        for stage in self.stages.kept:
            for topic, group in list(stage.records.groups):
                name = f"drain {topic} {group}"
                self._drain_by(DrainingUser(stage, name, Random(1), topic, group))
        for topic in main.records.sticky:
            self._drain_by(StickyDrainingUser(main, f"drain {topic}", Random(1), topic))

    async def _examine(self) -> None:
        """Users whose grants change, without faults."""
        accounts = self.accounts
        guests = []
        for servers in filter(None, (self.cluster.servers, self.gateways.servers)):
            guest = GuestUser(accounts.stage, f"guest of {servers[0]}", Random(1), accounts)
            guest.servers = servers
            guests.append(guest)
        async with self._connect() as client:
            await accounts.examine(client, guests)
            await accounts.check_stored(client)
        accounts.check_failures(self.stages.all)

    def _drain_by(self, user: User) -> None:
        self._equip(user)
        self._do(user.run, DRAINING_MS_MAX)

    def _check_rates(self) -> None:
        """The limits, by all that was delivered so far; what is left is delivered without."""
        limited = self.stages.limited

        async def lift() -> None:
            async with self._connect() as client:
                await lift_limits(limited, client)

        self._do(lift, SERVING_MS_MAX)
        rates = limited.records.rates
        for topic in list(rates):
            clock_rate = 1.0 if limited.has_right_clocks else max(DRIFT)
            judged = rates.pop(topic).check(clock_rate)
            self.world.story.counts["deliveries judged by a rate limit"] += judged

    def _check(self) -> None:
        counts = self.world.story.counts
        self._do(self._raise_level, SERVING_MS_MAX)
        for stage in self.stages.kept:
            self._check_kept(stage)
            counts["calls judged as linearizable"] += stage.records.log.check()
        self.stages.fleeting.records.log.check()
        self._until(self._is_level, SERVING_MS_MAX, "I9: the replicas do not become equal")
        brokers = list(self.cluster.brokers.values())
        counts["states compared"] = self._checks.check_states(
            [replica for broker in brokers for replica in broker.replicas]
        )
        for broker in brokers:
            broker.machine.kill()
        for stage in self.stages.kept:
            stage.records.messages.check(self._copies(stage))
        fleeting = self.stages.fleeting
        fleeting.records.messages.check(self._copies(fleeting), may_be_dropped=True)

    async def _raise_level(self) -> None:
        async with self._connect() as client:
            await raise_level(client)

    def _check_kept(self, stage: Stage) -> None:
        """Groups of topics whose messages are kept, against what is in their partitions."""
        contents: dict[TopicPartition, dict[int, Original]] = {}
        letters: dict[tuple[str, str], list[Letter]] = {}
        records = stage.records

        async def look() -> None:
            async with self._connect() as client:
                for topic, partitions in stage.topics.items():
                    for number in range(partitions):
                        contents[TopicPartition(topic, number)] = {
                            message.offset: Original(
                                message.key, message.value, dict(message.headers)
                            )
                            async for message in client.read(topic, number)
                        }
                for topic, group in records.groups:
                    letters[topic, group] = await _letters(client, topic, group)

        self._do(look, DRAINING_MS_MAX)
        for (topic, group), history in records.groups.items():
            here = {place: found for place, found in contents.items() if place.topic == topic}
            if stage.has_right_clocks and records.sent is not None:
                # Of groups that came later, too.
                for value, not_before_ms in records.sent.delays.items():
                    history.record_delay([value], not_before_ms)
            history.check_drained(here, letters[topic, group])
        ends = {place: len(found) for place, found in contents.items()}
        for sticky in records.sticky.values():
            sticky.check(ends, is_drained=True)
        self._check_priorities(records, contents)

    def _check_priorities(
        self, records: Records, contents: dict[TopicPartition, dict[int, Original]]
    ) -> None:
        sent = records.sent or SentValues()
        levels = {place: sent.levels_in(found) for place, found in contents.items()}
        delayed = {place: sent.delayed_in(found) for place, found in contents.items()}
        for history in records.priorities.values():
            judged = history.check(levels, delayed)
            self.world.story.counts["deliveries judged by priority"] += judged

    def _copies(self, stage: Stage) -> list[ReplicaCopy]:
        """The logs on the disk of each broker, read as a broker would that starts."""
        copies = []
        for broker in self.cluster.brokers.values():
            machine = broker.machine
            for topic, partitions in stage.topics.items():
                for number in range(partitions):
                    folder = f"log/{topic}/{number}"
                    if machine.disk.is_folder(folder):
                        place = TopicPartition(topic, number)
                        copies += self._copy(broker, place, folder)
        return copies

    def _copy(
        self, broker: SimulatedBroker, place: TopicPartition, folder: str
    ) -> list[ReplicaCopy]:
        """One copy, if it can be read. Damage that no broker has read since is still there."""
        try:
            log = Log.open(broker.machine.disk, folder)
            self._checks.check_log(place, broker.node, log)
            return [_copy_of(broker.node, place, log)]
        except Corrupt:
            if broker.node not in self._context.fragile or "damage" not in self.world.story.faults:
                raise
            self.world.story.counts["copies with damage that was not read"] += 1
            return []

    def _is_level(self) -> bool:
        for topic, partitions in self.stages.topics.items():
            for number in range(partitions):
                ends = {
                    (hosted.replica.commit_index, hosted.replica.applied_index)
                    for broker in self.cluster.brokers.values()
                    if broker.is_ready
                    and broker.server is not None
                    and (hosted := broker.server.broker.partitions.local(topic, b"", number))
                }
                if len(ends) != 1 or len(set(*ends)) != 1:
                    return False
        return self.cluster.is_ready

    # Users.

    def _add_user(self, make: MakeUser, dice: Random) -> None:
        self._made += 1
        machine = self._new_machine()
        user = self.stages.make_user(make, self._made, dice)
        self._equip(user)
        self._users[machine] = user
        self._makers[machine] = make
        machine.run(user.run, user.name)

    def _equip(self, user: User) -> None:
        """Give a user the addresses that it may know, a token, and a zone."""
        self.accounts.equip(user)
        user.servers = self.gateways.servers_for_user(self.cluster.servers)
        user.zone = _zone_of(user.name) if self._is_zoned else ""
        if user.servers is self.gateways.servers:
            self.world.story.counts["users of gateways"] += 1

    def _connect(self) -> "quivermq.aio.Connecting":
        """A client of the operator, who reaches all brokers."""
        # Virtual time stands still while a loop looks for anything.
        return quivermq.aio.connect(
            self.cluster.servers, timeout=20.0, token=self.accounts.root, busy_poll=False
        )

    def _new_machine(self, host: str = "") -> SimulatedMachine:
        self._machines += 1
        host = host or f"client{self._machines}"
        return SimulatedMachine(self.world, host, Random(self.dice.random()))

    def _remove_broker(self, node: int) -> None:
        """Have a broker removed from the cluster, and switch it off afterwards."""
        if node in self._leaving:
            return
        self._leaving.add(node)

        async def remove() -> None:
            async with self._connect() as client:
                await self._remove(client, node)
            self.world.story.counts["brokers removed"] += 1
            self._leaving.discard(node)
            # Not from here: another loop is running.
            self.world.time.after_ms(1, lambda: self.cluster.retire(node))

        self._new_machine().run(remove, f"removal of broker {node}")

    async def _remove(self, client: AsyncClient, node: int) -> None:
        """Ask until it was a member and is none."""
        was_member = False
        while True:
            try:
                nodes = (await client.cluster(latest=True)).nodes
                if node in {broker.id for broker in nodes}:
                    was_member = True
                    await client.remove_broker(node)
                elif was_member:
                    return
            except QuiverError as error:
                self.world.story.tell(f"broker {node} is not removed yet: {error}")
            await asyncio.sleep(1.0)

    def _kill_user(self) -> None:
        if not self._users:
            return
        machine = self._context.dice.choice(list(self._users))
        del self._users[machine]
        machine.kill()
        self._add_user(self._makers.pop(machine), Random(self._context.dice.random()))

    # Time.

    def _do(
        self, work: Callable[[], Coroutine[Any, Any, None]], longest_ms: int, host: str = ""
    ) -> None:
        """Run a program to its end."""
        machine = self._new_machine(host)
        process = machine.run(work, "work")
        self._until(
            lambda: process.main is not None and process.main.done(),
            longest_ms,
            f"I9: {work} does not end",
        )
        machine.kill()
        if process.failures:
            raise process.failures[0]

    def _run_for(self, duration_ms: int) -> None:
        self.world.time.run_for_ms(duration_ms)
        self._raise_failures()
        if self.budget is not None:
            self.budget.check()

    def _until(self, condition: Callable[[], bool], longest_ms: int, failure: str) -> None:
        if not self._comes_true(condition, longest_ms):
            raise Violation(f"{failure}: {self._standing}")

    def _comes_true(self, condition: Callable[[], bool], longest_ms: int) -> bool:
        end_ms = self.world.time.now_ms + longest_ms
        while not condition():
            if self.world.time.now_ms >= end_ms:
                return False
            self._run_for(50)
        return True

    def _served(self) -> Iterator[ServedMachine[Any]]:
        yield from self.cluster.brokers.values()
        yield from self.gateways.all

    def _processes(self) -> Iterator[Process]:
        for served in self._served():
            if served.machine.process is not None:
                yield served.machine.process
        for machine in self._users:
            if machine.process is not None:
                yield machine.process

    def _raise_failures(self) -> None:
        if self._checks.violations:
            raise self._checks.violations[0]
        for process in self._processes():
            if process.failures:
                error = process.failures[0]
                error.add_note(f"in {process.name}")
                raise error


async def _letters(client: Any, topic: str, group: str) -> list[Letter]:
    place = f"{topic}.dlq"
    try:
        partitions = (await client.topic(place)).partitions
    except TopicNotFound:
        return []
    found = [
        DeadLetter.of(message)
        for each in partitions
        async for message in client.read(place, each.partition)
    ]
    return letters_of(found, topic, group)


def _copy_of(node: int, place: TopicPartition, log: Log) -> ReplicaCopy:
    return ReplicaCopy(node, "stored", place, log.start.next_offset, stored_batches(log))


def _zone_of(name: str) -> str:
    """One of two, by the last digit of a host's or a user's name."""
    return "odd" if name[-1] in "13579" else "even"


def _settings(dice: Random) -> dict[str, object]:
    """Small segments, so that rolling and checkpoints happen all the time."""
    return {
        "tick_ms": dice.choice((50, 100)),
        "segment_bytes": dice.choice((64, 128)) << 10,
        "request_timeout_ms": 10_000,
        "retention_interval_ms": 1_000,
    }


def run_seed(seed: int, left_out: LeftOut | None = None) -> Outcome:
    """Run a seed; a failure becomes part of the outcome."""
    with silently():
        return _outcome_of(Simulation(seed, left_out))


def run_last_seed(seed: int) -> Outcome:
    """The same, in a process that ends after it. Nothing is cleaned up: that takes a quarter of the
    time."""
    gc.disable()
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    simulation = Simulation(seed)
    _kept.append(simulation)
    return _outcome_of(simulation)


_kept: Final[list[Simulation]] = []
"""Objects that are never freed."""


def _outcome_of(simulation: Simulation) -> Outcome:
    try:
        return simulation.run()
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return simulation.outcome(f"{type(error).__name__}: {error}\n{notes}")
