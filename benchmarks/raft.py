"""What consensus alone costs: `python -m benchmarks.raft [--profile]`.

Three members in one process on one core, over memory: no disk, no network, no encoding. So the
figures are the ceiling that the core sets for everything built on it, per entry, not per message:
an entry is a whole batch.
"""

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter

from quivermq.raft import (
    APPEND_THREAD,
    NOBODY,
    Configuration,
    Entry,
    HardState,
    Message,
    Options,
    RawNode,
    Role,
    Snapshot,
)
from quivermq.testing.memory_storage import MemoryStorage

QUEUED = (1, 8, 64)
TARGET_PER_S = 10_000
PAYLOAD = bytes(1000)
IDLE_GROUPS = 1_000
KEPT_ENTRIES = 5_000


class Trio:
    """Three members, each handling its Readys as soon as it has one."""

    def __init__(self, *, async_storage: bool = False) -> None:
        self.options = Options(async_storage=async_storage)
        start = Snapshot(1, 1, Configuration((1, 2, 3)))
        self.mail: list[Message] = []
        self.applied = 0
        self.nodes: dict[int, RawNode] = {}
        self.storages: dict[int, MemoryStorage] = {}
        for member in (1, 2, 3):
            storage = self.storages[member] = MemoryStorage()
            storage.install(start)
            storage.hard_state = HardState(1)
            self.nodes[member] = RawNode(member, storage, self.options, Random(member), applied=1)
        self.leader = self.nodes[1]
        self.leader.campaign()
        self.pump()
        if self.leader.replica.role is not Role.LEADER:
            raise RuntimeError("member 1 was not elected")

    def pump(self) -> None:
        """Work until nobody has anything to do."""
        nodes = self.nodes
        handle = self._handle_async if self.options.async_storage else self._handle
        for node in nodes.values():
            if node.has_ready:
                handle(node)
        while self.mail:
            taken, self.mail = self.mail, []
            for message in taken:
                nodes[message.to].step(message)
            for node in nodes.values():
                while node.has_ready:
                    handle(node)

    def _handle(self, node: RawNode) -> None:
        ready = node.ready()
        if ready is None:
            return
        if ready.entries:
            self._store(node, ready.entries)
        if node is self.leader:
            self.applied += len(ready.committed)
        self.mail += ready.messages
        node.advance()

    def _handle_async(self, node: RawNode) -> None:
        ready = node.ready()
        if ready is None:
            return
        for message in ready.messages:
            if message.to > NOBODY:
                self.mail.append(message)
                continue
            if message.to == APPEND_THREAD:
                if message.entries:
                    self._store(node, message.entries)
            elif node is self.leader:
                self.applied += len(message.entries)
            for response in message.responses:
                if response.to == node.id:
                    node.step(response)
                else:
                    self.mail.append(response)

    def _store(self, node: RawNode, entries: Sequence[Entry]) -> None:
        storage = self.storages[node.id]
        storage.append(entries)
        if len(storage.kept) > KEPT_ENTRIES:
            storage.compact(node.replica.log.applied)


def committed_per_s(queued: int, *, gathered: bool, async_storage: bool, seconds: float) -> float:
    """Entries committed per second with `queued` proposals waiting whenever the group is free.

    Gathered proposals go in as one call, as a replica hands over what its clients sent meanwhile;
    otherwise each goes in by itself, and is sent by itself.
    """
    trio = Trio(async_storage=async_storage)
    batch = [PAYLOAD] * queued
    before = trio.applied
    start = perf_counter()
    while (elapsed := perf_counter() - start) < seconds:
        if gathered:
            trio.leader.propose(*batch)
        else:
            for payload in batch:
                trio.leader.propose(payload)
        trio.pump()
    return (trio.applied - before) / elapsed


def idle_tick_us(role: Role, ticks: int = 50) -> float:
    """Microseconds that one tick of one idle member costs, its heartbeats included."""
    trios = [Trio() for _ in range(IDLE_GROUPS)]
    members = [trio.nodes[1 if role is Role.LEADER else 2] for trio in trios]
    settled_leases = 0.0
    for _ in range(ticks):
        start = perf_counter()
        for node in members:
            node.tick()
        settled_leases += perf_counter() - start
        for trio in trios:
            for node in trio.nodes.values():
                if node not in members:
                    node.replica.election_elapsed = 0
            trio.pump()
    return settled_leases / ticks / IDLE_GROUPS * 1e6


def profiled(act: Callable[[], object], rows: int) -> None:
    """Print where the time of one run goes."""
    profile = cProfile.Profile()
    profile.runcall(act)
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(rows)


def measure_commits(seconds: float) -> list[dict[str, object]]:
    """One row for each way to propose and to store."""
    rows: list[dict[str, object]] = []
    for async_storage in (False, True):
        for gathered in (False, True):
            for queued in QUEUED:
                rate = committed_per_s(
                    queued, gathered=gathered, async_storage=async_storage, seconds=seconds
                )
                rows.append(
                    {
                        "storage": "asynchronous" if async_storage else "synchronous",
                        "proposals": "gathered" if gathered else "one by one",
                        "queued": queued,
                        "entries_per_s": round(rate),
                    }
                )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.raft", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options, _ = parser.parse_known_args(arguments)
    seconds = 0.2 if options.quick else 2.0
    if options.profile:
        profiled(
            lambda: committed_per_s(64, gathered=False, async_storage=False, seconds=seconds),
            rows=25,
        )
        return
    rows = measure_commits(seconds)
    idle = {role.name.lower(): idle_tick_us(role) for role in (Role.LEADER, Role.FOLLOWER)}
    if options.json:
        print(json.dumps({"committed": rows, "idle_tick_us": idle}))
        return
    print(f"3 members, 1 core, {len(PAYLOAD)} byte entries; target {TARGET_PER_S:,}/s at 64 queued")
    for row in rows:
        way = f"{row['storage']} storage, {row['queued']:>2} queued, {row['proposals']}"
        print(f"  {way:<48} {row['entries_per_s']:>9,} entries/s")
    for role, cost in idle.items():
        way = f"a tick of {IDLE_GROUPS:,} idle groups, {role}s"
        print(f"  {way:<48} {cost * IDLE_GROUPS / 1000:>9.2f} ms")


if __name__ == "__main__":
    main()
