"""Whole replicas: consensus, state machine and log, three of them in one process on one core.

    python -m benchmarks.replica [--seconds 3] [--json] [--profile]

commit   batches of 10 messages of 100 bytes, so many in flight at a time; mail is handed over at
         once, and the logs lie on a memory file system, so what is left is our own work.
idle     1,000 partitions that nobody uses: what a tick of a node costs, before and after they have
         fallen asleep.
"""

import argparse
import cProfile
import json
import os
import pstats
import shutil
import tempfile
import time
from pathlib import Path
from random import Random

from quivermq.batches import encode_batch
from quivermq.log import Log, RealDisk
from quivermq.replica import (
    Answer,
    Persist,
    Replica,
    ReplicaSettings,
    SaveCheckpoint,
    Send,
    carry_out,
    found_log,
)

TARGET_PER_SECOND = 10_000
MEMBERS = (1, 2, 3)
MEMORY = Path("/dev/shm")


class Group:
    """Three replicas, and a loop that carries out what they ask for."""

    def __init__(self, root: Path, name: str = "0") -> None:
        self.logs: dict[int, Log] = {}
        self.replicas: dict[int, Replica] = {}
        self.answered = 0
        for member in MEMBERS:
            disk = RealDisk(root / str(member))
            log = found_log(disk, f"log/bench/{name}", os.urandom(16), MEMBERS)
            self.logs[member] = log
            self.replicas[member] = Replica(member, log, ReplicaSettings(), Random(member))

    def settle(self) -> None:
        busy = True
        while busy:
            busy = False
            for member, replica in self.replicas.items():
                for effect in replica.take_effects():
                    busy = True
                    if isinstance(effect, Send):
                        self.replicas[effect.to].receive(member, effect.mail)
                    elif isinstance(effect, Persist):
                        carry_out(self.logs[member], effect)
                        replica.persisted(effect.number)
                    elif isinstance(effect, SaveCheckpoint):
                        carry_out(self.logs[member], effect)
                    elif isinstance(effect, Answer):
                        self.answered += 1

    def leader(self) -> Replica:
        for now_ms in range(0, 100_000, 100):
            for replica in self.replicas.values():
                if replica.is_serving:
                    return replica
                replica.tick(now_ms)
            self.settle()
        raise RuntimeError("nobody was elected")

    def fall_asleep(self) -> None:
        for now_ms in range(0, 100_000, 100):
            if all(replica.is_asleep for replica in self.replicas.values()):
                return
            for replica in self.replicas.values():
                replica.tick(now_ms)
            self.settle()
        raise RuntimeError("somebody stays awake")


def committed_per_second(root: Path, queued: int, seconds: float) -> float:
    group = Group(root)
    leader = group.leader()
    batch = encode_batch([os.urandom(100) for _ in range(10)])
    start, token = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < seconds:
        for _ in range(queued):
            token += 1
            leader.produce(token, batch, token)
        group.settle()
    if group.answered != token:
        raise RuntimeError(f"{token} batches were sent, {group.answered} answered")
    shutil.rmtree(root)
    return token / taken


def idle_tick_ms(root: Path, groups: int = 1000, ticks: int = 20) -> dict[str, float]:
    """What one tick of all replicas of a node costs; the mail is dropped, as idle mail is small."""
    made = [Group(root, str(number)) for number in range(groups)]
    leading = [group.leader() for group in made]
    following = [
        next(replica for replica in group.replicas.values() if not replica.is_leader)
        for group in made
    ]
    costs = {}
    for name, replicas in (("leaders", leading), ("followers", following)):
        start = time.perf_counter()
        for now_ms in range(ticks):
            for replica in replicas:
                replica.tick(now_ms)
                replica.take_effects()
        costs[name] = (time.perf_counter() - start) / ticks * 1000
        # A leader that is not answered would step down, and a follower stand for election.
        if not all(replica.is_leader for replica in leading):
            raise RuntimeError("a leader stepped down: fewer ticks")
    for group in made:
        group.fall_asleep()
    start = time.perf_counter()
    for now_ms in range(ticks):
        for replica in leading:
            if not replica.is_asleep:
                replica.tick(now_ms)
    costs["sleepers"] = (time.perf_counter() - start) / ticks * 1000
    shutil.rmtree(root)
    return costs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--groups", type=int, default=1000, help="idle partitions")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="top costs at 64 queued")
    options = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)) / "bench"
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(committed_per_second, root, 64, options.seconds)
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        return
    rates = {queued: committed_per_second(root, queued, options.seconds) for queued in (1, 8, 64)}
    idle = idle_tick_ms(root, options.groups, ticks=5)
    if options.json:
        print(json.dumps({"committed_per_s": rates, "idle_tick_ms": idle}))
        return
    print(f"3 whole replicas, 1 core; target {TARGET_PER_SECOND:,}/s at 64 queued")
    for queued, rate in rates.items():
        print(f"  {queued:2} queued  {rate:10,.0f} entries/s  {rate * 10:10,.0f} messages/s")
    for name, cost in idle.items():
        print(f"  a tick of {options.groups:,} idle {name:9}  {cost:6.2f} ms")


if __name__ == "__main__":
    main()
