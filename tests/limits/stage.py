"""Three replicas at a limit: filled, led by another, started again from their disks.

A scenario fills one limit. After that each call at a replica is timed, in CPU time of this thread:
whatever runs on a broker's event loop must not hold it for longer than `LIMIT_S`. Python's
collector is told apart: it looks through the objects of all three replicas, and of the scenario.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from time import thread_time
from typing import Any, ClassVar, Final, TypeVar

from quivermq.batches import Frame, Origin, encode_batch
from quivermq.batches.limits import KIB, MIB
from quivermq.log import LogSettings
from quivermq.queue import GrantedLease, LeaseManager, LeaseRequest
from quivermq.queue.partition import _HEADER as PARTITION_HEADER
from quivermq.replica import Produced, Replica, ReplicaSettings, Result
from tests.replica import group as group_stage
from tests.replica.group import Group, Node

LIMIT_S: Final = 0.2
HOUR_MS: Final = 3_600_000
AT_ONCE: Final = 1_000
"""Requests that are under way together while something is filled."""
_ROUNDS: Final = 100_000
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What a scenario took, in seconds of CPU."""

    name: str
    size: str
    fill_s: float
    change_s: float
    restart_s: float
    longest_s: float
    longest: str
    collector_s: float

    def __str__(self) -> str:
        return (
            f"{self.name:<12} {self.size:<44} fill {self.fill_s:7.2f} s  leader "
            f"{self.change_s:6.2f} s  restart {self.restart_s:6.2f} s  longest "
            f"{1000 * self.longest_s:6.1f} ms ({self.longest})"
            f"  collector {1000 * self.collector_s:6.1f} ms"
        )


class Collections:
    """What Python's collector took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.longest_s = 0.0
        self._began = 0.0

    def note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = thread_time()
            return
        took_s = thread_time() - self._began
        self.seconds += took_s
        self.longest_s = max(self.longest_s, took_s)


class Stage:
    """Replicas of one partition, and a watch on what each of their calls takes."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.longest: tuple[float, str] = (0.0, "nothing")
        self.collections = Collections()
        self.sizes: list[str] = []
        self._group: Group | None = None
        self._settings: dict[str, Any] = {}
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Stage":
        whole = self.scale >= 1
        segment = 8 * MIB if whole else 32 * KIB
        self._put(
            group_stage, "SMALL", LogSettings(segment_bytes=segment, allocation_bytes_min=4 * KIB)
        )
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, value in reversed(self._undo):
            setattr(owner, name, value)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    # Limits.

    def limit(self, module: str, name: str, least: int = 8) -> int:
        """A constant's value, which is smaller here if the stage is."""
        owner = import_module(f"quivermq.{module}")
        value = self._scaled(name, getattr(owner, name), least)
        self._put(owner, name, value)
        return value

    def setting(self, name: str, least: int = 8) -> int:
        """The same of a setting of the replicas; before any of them is used."""
        value = self._scaled(name, getattr(ReplicaSettings(), name), least)
        self._settings[name] = value
        if name == "checkpoint_bytes_max":
            known = group_stage.SMALL
            self._put(
                group_stage,
                "SMALL",
                LogSettings(
                    known.segment_bytes, known.allocation_bytes_min, checkpoint_bytes_max=value
                ),
            )
        return value

    def _scaled(self, name: str, value: int, least: int) -> int:
        found = value if self.scale >= 1 else max(int(value * self.scale), least)
        self.sizes.append(f"{name} {found:,}")
        return found

    # Replicas.

    @property
    def group(self) -> Group:
        if self._group is None:
            # Made once the limits are known. Nobody sleeps: a sleeper would hide what time brings.
            self._group = Group(3, ReplicaSettings(**self._settings, sleep_ticks=0))
        return self._group

    @property
    def leader(self) -> Node:
        return self.group.leader()

    @property
    def end(self) -> int:
        return self.leader.replica.edge.next_offset

    def timed(self, what: str, act: Callable[[], T]) -> T:
        began = thread_time() - self.collections.seconds
        try:
            return act()
        finally:
            took_s = thread_time() - self.collections.seconds - began
            self.longest = max(self.longest, (took_s, what))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Time whatever replicas do by themselves."""
        known = {name: getattr(Replica, name) for name in ("take_effects", "receive", "tick")}

        def watched(name: str) -> Callable[..., Any]:
            act = known[name]

            def wrapper(*args: Any) -> Any:
                return self.timed(name, lambda: act(*args))

            return wrapper

        for name in known:
            setattr(Replica, name, watched(name))
        gc.callbacks.append(self.collections.note)
        try:
            yield
        finally:
            gc.callbacks.remove(self.collections.note)
            for name, act in known.items():
                setattr(Replica, name, act)

    # What clients do.

    def produce(self, frames: Iterable[Frame]) -> None:
        """Store batches, many at a time; all of them must be."""
        for result in self.attempt(frames):
            assert isinstance(result, Produced), result

    def attempt(self, frames: Iterable[Frame]) -> Iterator[Result]:
        """What producers are answered."""
        leader = self.leader
        tokens: list[int] = []
        for frame in frames:
            tokens.append(self.group.token())
            leader.replica.produce(tokens[-1], frame, self.group.now_ms)
            if len(tokens) == AT_ONCE:
                self.group.settle()
                yield from map(leader.answers.pop, tokens)
                tokens = []
        self.group.settle()
        yield from map(leader.answers.pop, tokens)

    def with_leases(self, what: str, act: Callable[[LeaseManager], T]) -> T:
        """A request of a consumer, committed when this returns."""
        now_ms = self.group.now_ms
        leader = self.leader
        try:
            return self.timed(what, lambda: leader.replica.with_leases(act, None, now_ms, now_ms))
        finally:
            self.group.settle()

    def poll(
        self, most: int = 1, *, name: str = "g", consumer: int = 1, what: str = "poll"
    ) -> GrantedLease | None:
        now_ms, end = self.group.now_ms, self.end

        def act(lease_manager: LeaseManager) -> GrantedLease | None:
            lease_manager.working_copy.open_group(name, 0)
            return lease_manager.lease(
                LeaseRequest(name, consumer, most, HOUR_MS), end, now_ms, now_ms
            )

        return self.with_leases(what, act)

    def polls(self, names: Iterable[str], most: int = 1) -> list[GrantedLease]:
        """Many polls whose grants are committed together."""
        now_ms, end, leader = self.group.now_ms, self.end, self.leader
        found: list[GrantedLease] = []
        for name in names:
            ask = LeaseRequest(name, 1, most, HOUR_MS)

            def act(lease_manager: LeaseManager, ask: LeaseRequest = ask) -> GrantedLease | None:
                lease_manager.working_copy.open_group(ask.group, 0)
                return lease_manager.lease(ask, end, now_ms, now_ms)

            leased = leader.replica.with_leases(act, None, now_ms, now_ms)
            assert leased is not None
            found.append(leased)
            if len(found) % AT_ONCE == 0:
                self.group.settle()
        self.group.settle()
        return found

    def acknowledge(
        self, leased: GrantedLease, parts: list[tuple[int, int]] | None = None, what: str = "ack"
    ) -> list[tuple[int, int]]:
        act = partial(
            LeaseManager.acknowledge, group="g", lease=leased.lease, intervals=parts, consumer=1
        )
        return self.with_leases(what, act)

    def ring(self, most: int = _ROUNDS) -> int:
        """Let the alarm do all that is due by now; returns how often it rang."""
        now_ms = self.group.now_ms
        for rounds in range(most):
            if (
                self.with_leases(
                    "alarm_ms", lambda lease_manager: lease_manager.alarm_ms(now_ms, now_ms)
                )
                != 0
            ):
                return rounds
            self.with_leases("alarm", lambda lease_manager: lease_manager.expire(now_ms, now_ms))
        return most

    # What becomes of the replicas.

    def save_checkpoints(self) -> None:
        """Store messages until all replicas have written down what they hold now."""
        mark = self.leader.replica.applied_index
        body = b"." * (MIB if self.scale >= 1 else 8 * KIB)
        while any(node.log.checkpoints()[-1] <= mark for node in self.group.nodes.values()):
            self.produce([encode_batch([body])])

    def change_leader(self) -> None:
        """The leader is cut off until another one serves, and hears the rest afterwards."""
        before = self.leader
        self.group.tick()
        self.group.isolate(before.member)
        for _ in range(200):
            self.group.tick()
            if self.leader is not before:
                break
        assert self.leader is not before
        self.group.heal()
        self.catch_up()

    def restart(self) -> None:
        """The power fails everywhere."""
        for node in self.group.nodes.values():
            assert node.log.checkpoints()[-1] > 1
            node.restart()
        self.catch_up()

    def catch_up(self) -> None:
        """Until all replicas have applied the same."""
        for _ in range(200):
            self.group.tick()
            replicas = [node.replica for node in self.group.nodes.values()]
            applied = {replica.applied_index for replica in replicas}
            if self.leader and applied == {self.leader.replica.commit_index}:
                return
        raise AssertionError("replicas do not catch up")

    def agree(self) -> bytes:
        """All replicas hold the same, and all of it is in order; what they hold."""
        self.catch_up()
        replicas = [node.replica for node in self.group.nodes.values()]
        held = {_held(replica) for replica in replicas}
        assert len(held) == 1, "replicas hold different states"
        for replica in replicas:
            replica.validate()
        return held.pop()


def _held(replica: Replica) -> bytes:
    """The state, without index, term and time of what was applied last."""
    assert replica._live is not None
    packed = replica._live.partition.snapshot().pack()
    return sha256(packed[PARTITION_HEADER.size :]).digest()


class Scenario:
    """One limit, or some that are met together."""

    name: ClassVar[str]
    limits: ClassVar[tuple[str, ...]]
    """File and name, as the registry finds them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def fill(self) -> None:
        """Come to the limit."""
        raise NotImplementedError

    def is_full(self) -> None:
        """One more is refused, or handled as promised; asked after each change as well."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Room is made, and the work goes on."""
        raise NotImplementedError


def run(scenario: type[Scenario], scale: float = 1.0) -> Outcome:
    """Carry a scenario out; raises what it raises. Whoever calls looks at the longest call."""
    began = thread_time()
    times: list[float] = []

    def lap() -> None:
        nonlocal began
        now = thread_time()
        times.append(now - began)
        began = now

    with Stage(scale) as stage:
        at_limit = scenario(stage)
        at_limit.fill()
        lap()
        stage.longest = (0.0, "nothing")
        with stage.watch():
            stage.save_checkpoints()
            at_limit.is_full()
            stage.change_leader()
            at_limit.is_full()
            lap()
            before = stage.agree()
            stage.restart()
            assert stage.agree() == before
            at_limit.is_full()
            lap()
            at_limit.go_on()
            stage.agree()
        sizes, collector_s = ", ".join(stage.sizes), stage.collections.longest_s
        return Outcome(scenario.name, sizes, *times, *stage.longest, collector_s)


def origin(frame: Frame, **fields: int) -> Frame:
    """A batch of the same messages that says something else of where it comes from."""
    return Frame(frame.header._replace(**fields), frame.body)


def delayed(due_ms: int, *values: bytes) -> Frame:
    return encode_batch(list(values), origin=Origin(not_before_ms=due_ms))
