"""Runs real brokers and users while faults strike, in rounds that are judged one by one.

In each round users work on a topic of its own while faults strike, alone and several at once. Then
everything heals and the cluster has to serve; the consumers finish all messages, the brokers stop,
their logs are copied, and a judge in a process of its own compares them with the journals.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from quivermq.errors import QuiverError, TopicNotFound
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster, ClusterFaults, Undo
from quivermq.testing.cluster.faults import Links
from quivermq.testing.cluster.forked_process import CAN_FORK, ForkedProcess, start_forked
from quivermq.testing.soak.judge import JOURNALS, LOGS, VERDICT
from quivermq.testing.soak.record import SoakRecord, Strike, sample
from quivermq.testing.soak.spark_load import SparkLoad
from quivermq.testing.soak.user_process import VIOLATION
from quivermq.testing.soak.users import GROUPS, ProbingUser, journaled_stage, run_users
from quivermq.testing.trials import TopicPartition, lead_by, wait_until_level
from quivermq.testing.trials.journal import Journal, JournaledCalls
from quivermq.testing.trials.observer import ReplicaObserver, ReplicaProgress
from quivermq.testing.trials.users import DrainingUser, StickyDrainingUser, User

_USERS: Final = "quivermq.testing.soak.user_process"
PARTITIONS: Final = 3
PACE_S: Final = 0.05
_PROBE_PACE_S: Final = 0.03
PROGRESS_S: Final = 60.0
"""I9: so long after the faults of a strike are over, every partition has taken a message."""
_DRAIN_S: Final = 240.0
_JOIN_S: Final = 90.0
_JUDGE_S: Final = 600.0
_SAMPLE_S: Final = 5.0
_LASTING_CHANCE: Final = 0.08
_USERS_CHANCE: Final = 0.3
_ALONE_CHANCE: Final = 0.6
_OVERLAP_MAX: Final = 3
_STRIKE_S: Final = (0.2, 3.0)

PROGRAMS: Final[dict[str, list[str]]] = {
    "producers": ["produce", "produce", "produce"],
    "readers": ["read", "read", "commit", "once"],
    "consumers": ["consume", "consume", "push"],
    "sticky": ["sticky", "sticky"],
    "more-sticky": ["sticky"],
    "blocking": ["blocking"],
}
"""The processes, and their users."""


class UserProcess:
    """Users in a process of their own."""

    def __init__(self, program: str, number: int, asked: dict[str, Any], journals: Path) -> None:
        self.program = program
        name = f"{program} {number}"
        users = PROGRAMS.get(program, [program])
        journal = str(journals / f"{name.replace(' ', '-')}.journal")
        what = {**asked, "name": name, "users": users, "seed": name, "journal": journal}
        self._log = (journals.parent / f"{name.replace(' ', '-')}.log").open("wb")
        self.process = self._launch(json.dumps(what))

    def _launch(self, asked: str) -> "ForkedProcess | subprocess.Popen[bytes]":
        if CAN_FORK:
            return start_forked(_USERS, asked, stderr=self._log.fileno())
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _USERS, asked],
            stdin=subprocess.PIPE,
            stderr=self._log,
            process_group=0,
        )

    def stop(self) -> int:
        """Let the users finish what they have begun; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        try:
            return self.process.wait(_JOIN_S)
        except subprocess.TimeoutExpired:
            raise Violation(f"I9: {self.program}: calls do not end in {_JOIN_S:.0f} s") from None
        finally:
            self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()


class Round:
    """One topic, its users, and the faults that strike it."""

    def __init__(self, soak: "Soak", number: int) -> None:
        self._soak = soak
        self._cluster = soak.cluster
        self._number = number
        self.topic = f"round-{number}"
        self.folder = soak.folder / f"round-{number}"
        self._journals = self.folder / JOURNALS
        self._journals.mkdir(parents=True)
        self._places = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
        self._journal = Journal(self._journals / "driver.journal")
        self._processes: dict[str, UserProcess] = {}
        self._leaving: list[UserProcess] = []
        self._started = 0
        self._kinds = soak.draw_kinds()
        self._has_right_clocks = not any("clock" in fault.__name__ for fault in self._kinds)
        self._stage = journaled_stage(
            self._journal,
            self._cluster.servers,
            self.topic,
            PARTITIONS,
            _PROBE_PACE_S,
            has_right_clocks=self._has_right_clocks,
        )
        self._probes = [
            ProbingUser(self._stage, f"probe {place}", Random(str(place)), place)
            for place in self._places
        ]

    def run(self, seconds: float) -> None:
        """Load, strike, heal, drain and stop; the logs are copied."""
        with self._cluster.connect(timeout=30.0) as client:
            client.create_topic(self.topic, partitions=PARTITIONS, max_deliveries=20)
        lost = self._soak.faults.lost_disk
        lost.clear()
        seen = cast("ReplicaProgress", JournaledCalls(self._journal, "progress"))
        with ReplicaObserver(self._cluster, self._places, lost, seen):
            with self._users():
                self.wait_progress()
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    self._strike()
                self._cluster.start()
                self.wait_progress()
            self._soak.tell("everything is healed; the groups finish")
            self._drain()
        self._look_at_groups()
        self._copy_logs()

    # Users.

    @contextmanager
    def _users(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(self._close_users)
            with _Background(list(self._probes), self._end_probes):
                for program in PROGRAMS:
                    self._start(program)
                yield
            for process in self._processes.values():
                self._check(process, process.stop())
            for process in self._leaving:
                self._check(process, process.wait())

    def _start(self, program: str) -> UserProcess:
        asked = {
            "servers": self._cluster.servers,
            "topic": self.topic,
            "partitions": PARTITIONS,
            "pace_s": PACE_S,
            "has_right_clocks": self._has_right_clocks,
        }
        process = UserProcess(program, self._started, asked, self._journals)
        self._started += 1
        self._processes[program] = process
        return process

    def _check(self, process: UserProcess, code: int) -> None:
        # One that was told to end before it had begun has done nothing.
        if code not in {0, VIOLATION, -signal.SIGTERM}:
            raise Violation(f"the users of {process.program} ended with {code}")

    def _end_probes(self) -> None:
        self._stage.is_over = True

    def _close_users(self) -> None:
        for process in (*self._processes.values(), *self._leaving):
            process.close()

    def kill_users(self) -> Undo:
        """Kill a process of users, in whatever they do."""
        program = self._soak.dice.choice(list(PROGRAMS))
        self._processes[program].close()

        def undo() -> None:
            self._start(program)

        return undo

    def leave_users(self) -> Undo:
        """Start users that end without closing anything; they end while other faults strike."""
        self._leaving.append(self._start("leaving"))
        del self._processes["leaving"]
        return lambda: None

    # Faults.

    def _strike(self) -> None:
        """Begin faults, let them last, end them, and see that the cluster serves."""
        dice, faults = self._soak.dice, self._soak.faults
        if dice.random() < _LASTING_CHANCE and not self._soak.is_upgrading:
            chosen = [dice.choice(faults.lasting())]
        elif dice.random() < _USERS_CHANCE:
            spark = [self._soak.spark.kill_spark] if self._soak.spark else []
            chosen = [dice.choice((self.kill_users, self.kill_users, self.leave_users, *spark))]
        else:
            several = 1 if dice.random() < _ALONE_CHANCE else dice.randint(2, _OVERLAP_MAX)
            chosen = dice.sample(self._kinds, min(several, len(self._kinds)))
        strike = Strike([fault.__name__ for fault in chosen], self._number, time.monotonic())
        self._soak.tell(", ".join(strike.kinds))
        self._soak.record.strikes.append(strike)
        undo: list[Undo] = []
        for fault in chosen:
            undo.append(fault())
            time.sleep(dice.uniform(*_STRIKE_S))
        dice.shuffle(undo)
        for one in undo:
            one()
        strike.ended_s = time.monotonic()
        self.wait_progress()

    def wait_progress(self) -> None:
        """Wait until every partition has taken another message, sent by a probe since now."""
        began_us = time.monotonic_ns() // 1000
        self._cluster.wait_until(
            lambda: all(
                probe.answered_us and probe.answered_us[-1] > began_us for probe in self._probes
            ),
            "I9: produces are not acknowledged any more",
            PROGRESS_S,
        )

    # The end.

    def _drain(self) -> None:
        """Let consumers finish everything that is left for the groups."""
        stage = self._stage
        left: list[User] = [
            DrainingUser(stage, f"drain {group}", Random(1), self.topic, group) for group in GROUPS
        ]
        left.append(StickyDrainingUser(stage, "drain sticky", Random(1), self.topic))
        with _Background(left, lambda: None) as draining:
            if not draining.wait(_DRAIN_S):
                raise Violation(f"I5: the groups have unfinished messages after {_DRAIN_S:.0f} s")

    def _look_at_groups(self) -> None:
        """Journal the figures of the groups, as each replica tells them when it leads."""
        cluster = self._cluster
        with cluster.connect(timeout=30.0) as client:
            partitions = client.topic(self.topic).partitions
            for node in sorted({node for each in partitions for node in each.replicas}):
                for each in partitions:
                    if node in each.replicas:
                        lead_by(cluster, client, self.topic, each.partition, node)
                for group in GROUPS:
                    info = client.group(self.topic, group)
                    self._journal.write("figures", "append", (group, info))

    def _copy_logs(self) -> None:
        """Stop all brokers once their replicas are equal, and copy what is on their disks."""
        holders = {place: wait_until_level(self._cluster, place) for place in self._places}
        with self._cluster.connect(timeout=30.0) as client, suppress(TopicNotFound):
            letters = client.topic(f"{self.topic}.dlq").partitions
            for each in letters:
                place = TopicPartition(f"{self.topic}.dlq", each.partition)
                holders[place] = wait_until_level(self._cluster, place)
        self._cluster.stop()
        for place, nodes in holders.items():
            for node in nodes:
                inner = Path("log") / place.topic / str(place.partition)
                shutil.copytree(
                    self._cluster.nodes[node].data_dir / inner,
                    self.folder / LOGS / str(node) / inner,
                )

    def answers(self) -> dict[str, list[float]]:
        """When each probe was answered."""
        return {
            f"{probe.place()}": [at_us / 1e6 for at_us in probe.answered_us]
            for probe in self._probes
        }


class _Background:
    """Runs users in a thread while a `with` lasts."""

    def __init__(self, users: list[Any], end: Callable[[], None]) -> None:
        self._end = end
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(users,), daemon=True)

    def _run(self, users: list[Any]) -> None:
        try:
            asyncio.run(run_users(users))
        except BaseException as error:
            self._failure = error

    def wait(self, timeout: float) -> bool:
        """Wait until all have ended; whether they have."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> "_Background":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end()
        if error is None:
            if not self.wait(_JOIN_S):
                raise Violation(f"I9: calls do not end in {_JOIN_S:.0f} s")
            if self._failure is not None:
                raise self._failure


class Soak:
    """Rounds against one cluster."""

    def __init__(
        self, cluster: Cluster, links: Links, record: SoakRecord, folder: Path,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.record = record
        self.folder = folder
        self.dice = Random(record.seed)
        self.faults = ClusterFaults(cluster, links, self.dice)
        self.tell = tell
        self.spark: SparkLoad | None = None
        self._judging: tuple[Round, subprocess.Popen[bytes]] | None = None
        self._over = threading.Event()

    @property
    def is_upgrading(self) -> bool:
        """Whether brokers of two releases take part: in the first round."""
        return self.faults.release is not None and self.record.rounds == 0

    def draw_kinds(self) -> list[Callable[[], Undo]]:
        """The faults of a round. One with few kinds reaches what all kinds together prevent."""
        if self.is_upgrading:
            return [self.faults.change_release]
        faults = self.faults.passing() + self.faults.disk_faults()
        return self.dice.sample(faults, self.dice.randint(4, len(faults)))

    def upgrade(self) -> None:
        """Start all brokers of the other release with this one, and raise the feature level."""
        for node in self.cluster.nodes.values():
            if node.code is not None:
                node.change_release(None)
        self.cluster.wait_ready()
        with self.cluster.connect(timeout=60.0) as client:
            self.tell(f"all brokers are of this release: level {client.upgrade_cluster().level}")

    def run(self, seconds: float, round_s: float) -> None:
        """Run rounds until the time is over; raises what a judge finds."""
        sampler = threading.Thread(target=self._sample, daemon=True)
        sampler.start()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                left_s = max(1.0, end - time.monotonic())
                self._run_round(min(round_s, left_s))
            self._await_judge()
            if self.spark is not None:
                self.tell("Spark finishes")
                self.record.counts.update(self.spark.finish())
        finally:
            if self.spark is not None:
                self.spark.close()
            self._over.set()
            sampler.join()
            self.record.ended_s = time.monotonic()
            self.record.stalls = [
                f"broker {node.id}: {stall}"
                for node in self.cluster.nodes.values()
                for stall in node.stalls()
            ]

    def _run_round(self, seconds: float) -> None:
        number = self.record.rounds
        one = Round(self, number)
        self.tell(f"round {number}, {len(self.cluster.nodes)} brokers")
        one.run(seconds)
        was_upgrading = self.is_upgrading
        self.record.rounds += 1
        self.record.answers |= one.answers()
        self._await_judge()
        judge = [sys.executable, "-m", "quivermq.testing.soak.judge", str(one.folder), one.topic]
        self._judging = one, subprocess.Popen(judge)  # noqa: S603 - our own module
        self.cluster.start()
        if was_upgrading:
            self.upgrade()
        self._delete(one.topic)

    def _delete(self, topic: str) -> None:
        with self.cluster.connect(timeout=30.0) as client:
            for name in (topic, f"{topic}.dlq"):
                with suppress(TopicNotFound):
                    client.delete_topic(name)

    def _await_judge(self) -> None:
        if self._judging is None:
            return
        one, process = self._judging
        self._judging = None
        code = process.wait(_JUDGE_S)
        path = one.folder / VERDICT
        if not path.exists():
            raise Violation(f"the judge of {one.topic} ended with {code}")
        verdict = json.loads(path.read_text())
        self.record.counts.update(verdict["counts"])
        if verdict["failure"]:
            raise Violation(f"{one.topic}: {verdict['failure']}")
        shutil.rmtree(one.folder)

    def _sample(self) -> None:
        """Note the memory and the open files of all brokers, now and then."""
        while not self._over.wait(_SAMPLE_S):
            for node in list(self.cluster.nodes.values()):
                with suppress(OSError, QuiverError):
                    self.record.samples.append(sample(node))
