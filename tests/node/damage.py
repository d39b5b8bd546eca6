"""Damage to a data directory: every file of a real broker, every kind of damage, one at a time.

    python -m tests.node.damage            every byte of small files, a sample of large ones
    python -m tests.node.damage --seed 7   another sample

The situation in which a broker's word counts most: 3 was away while 1 and 2 acknowledged messages.
Everything stops, a file of 1 is damaged, and 1 comes back without 2. Whatever of 1 still votes then
must have all that it acknowledged, and its votes: together with 3 it is a majority.
"""

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from quivermq.batches import Index
from quivermq.cluster import METADATA_PARTITION, View, partition_id
from quivermq.errors import Corrupt, QuiverError
from quivermq.log import Log, RealDisk
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.hosting import WantedReplica
from quivermq.node.membership import METADATA_NAME
from tests.node.cluster_stage import Brokers, cluster
from tests.node.test_hosting import Host
from tests.transports.stage import PATIENT, Talker, make_topic, store, until

BLOCK = 4096
SMALL_FILE = 2 * BLOCK
PARTITIONS = 2
EARLY, LATE = 6, 14
MESSAGE = bytes(range(256)) * 40


class Held(NamedTuple):
    """What a replica had when everything stopped."""

    folder: str
    member: int
    term: int
    vote: int
    first_index: Index
    entries: list[bytes]


@dataclass
class Origin:
    """The data directories from before the damage, `1` to `3`, and what must not be lost."""

    root: Path
    brokers: Brokers
    view: View = field(default_factory=View)
    held: dict[bytes, Held] = field(default_factory=dict)
    ends: dict[bytes, int] = field(default_factory=dict)
    """Behind the last acknowledged message of each partition."""

    @property
    def files(self) -> list[str]:
        found = (path for path in (self.root / "1").rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.root / "1")) for path in found)


def entries_of(log: Log) -> list[bytes]:
    return [b"".join(map(bytes, frame.buffers())) for frame in log.frames(log.first_index)]


def orders(brokers: Brokers, node: int) -> list[HostedReplica]:
    groups = brokers.running[node].broker.scheduler.replicas.values()
    return [group for group in groups if group.name.topic == "orders"]


async def prepared(folder: Path) -> Origin:
    """3 misses what 1 and 2 acknowledge. Copied as it is: nobody had time to stop in order."""
    async with cluster(folder / "live", fsync="always", segment_bytes=65_536, **PATIENT) as brokers:
        talker = await Talker.in_memory(brokers.running[1])
        await make_topic(talker, partitions=PARTITIONS)
        for number in range(EARLY):
            await store(talker, MESSAGE, partition=number % PARTITIONS)
        await until(lambda: ends(brokers, 3) == ends(brokers, 1))
        await brokers.stop(3)
        await until(lambda: len([g for g in groups_of(brokers) if g.was_serving]) == PARTITIONS + 1)
        for number in range(LATE):
            await store(talker, b"%d" % number + MESSAGE, partition=number % PARTITIONS)
        await until(lambda: ends(brokers, 2) == ends(brokers, 1))
        talker.close()
        origin = Origin(folder / "origin", brokers, brokers.running[1].broker.metadata.view)
        origin.ends = ends(brokers, 1)
        await until(lambda: not any(group.is_writing for group in groups_of(brokers)))
        shutil.copytree(folder / "live", origin.root)
    shutil.copytree(origin.root / "1", folder / "look")
    view = origin.view
    names = {partition_id(t.id, n): f"log/{t.name}/{n}" for t, n, _ in view.partitions()}
    for group, place in {**names, METADATA_PARTITION: METADATA_NAME.folder}.items():
        log = Log.open(RealDisk(folder / "look"), place)
        facts = (log.member, log.term, log.vote, log.first_index)
        origin.held[group] = Held(place, *facts, entries_of(log))
    return origin


def ends(brokers: Brokers, node: int) -> dict[bytes, int]:
    """By partition: a follower may be behind in one, and lead another in which others are."""
    return {group.id: group.readable_end for group in orders(brokers, node)}


def groups_of(brokers: Brokers) -> Iterator[HostedReplica]:
    for server in brokers.running.values():
        yield from server.broker.scheduler.replicas.values()


class Damage(NamedTuple):
    """What is done to one file of broker 1, and how to say it."""

    file: str
    what: str
    do: Callable[[Path], None]


def flipped(file: str, bit: int) -> Damage:
    def do(root: Path) -> None:
        data = bytearray((root / file).read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        (root / file).write_bytes(data)

    return Damage(file, f"bit {bit % 8} of byte {bit // 8} flipped", do)


def zeroed(file: str, block: int) -> Damage:
    def do(root: Path) -> None:
        with (root / file).open("r+b") as opened:
            size = opened.seek(0, 2)
            opened.seek(block * BLOCK)
            opened.write(bytes(min(BLOCK, size - block * BLOCK)))

    return Damage(file, f"block {block} zeroed", do)


def truncated(file: str, size: int) -> Damage:
    return Damage(file, f"cut to {size} bytes", lambda root: _truncate(root / file, size))


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as opened:
        opened.truncate(size)


def missing(file: str) -> Damage:
    return Damage(file, "missing", lambda root: (root / file).unlink())


def swapped(file: str, other: str) -> Damage:
    def do(root: Path) -> None:
        (root / file).rename(root / "aside")
        (root / other).rename(root / file)
        (root / "aside").rename(root / other)

    return Damage(file, f"swapped with {other}", do)


def damages(origin: Origin, seed: int, *, whole: bool = False) -> Iterator[Damage]:
    """All kinds for each file; where there is a choice of place, a sample, or every byte."""
    dice = random.Random(seed)
    files = origin.files
    for file in files:
        data = (origin.root / "1" / file).read_bytes()
        yield missing(file)
        if data:
            used = len(data.rstrip(b"\0"))
            every = range(used) if whole and len(data) <= SMALL_FILE else None
            sample = dice.sample(range(used), min(used, 40 if whole else 2))
            for byte in every or sample:
                yield flipped(file, 8 * byte + dice.randrange(8))
            blocks = range((used + BLOCK - 1) // BLOCK)
            last = blocks[-1]
            some = blocks if whole else {0, last, dice.choice(blocks)}
            yield from (zeroed(file, block) for block in some)
            yield from (truncated(file, size) for size in {0, dice.randrange(len(data)), used - 1})
        kind = Path(file).suffix or Path(file).name
        same = [f for f in files if f != file and (Path(f).suffix or Path(f).name) == kind]
        others = [f for f in files if f != file and f not in same]
        for choice in (same, others):
            picked = choice if whole else dice.sample(choice, min(1, len(choice)))
            yield from (swapped(file, other) for other in picked)


async def faults(origin: Origin, damage: Damage, root: Path) -> list[str]:
    """Start broker 1 on a damaged copy: what breaks the rule."""
    shutil.copytree(origin.root / "1", root)
    damage.do(root)
    try:
        it = Host(root)
    except QuiverError:
        return _vanished(origin, root)
    try:
        identity = it.directory.identity
        if identity.member != origin.held[METADATA_PARTITION].member:
            return [f"it takes itself for member {identity.member}"]
        try:
            await it.hosting.open_replica(
                WantedReplica(METADATA_PARTITION, METADATA_NAME, identity.member, ())
            )
        except QuiverError:
            return _vanished(origin, root)
        await it.hosting.reconcile(it.current(origin.view))
        found = [
            f"{held.folder}: {fault}"
            for group, held in origin.held.items()
            for fault in _replica_faults(it, group, held)
        ]
    finally:
        await it.close()
    return found + _vanished(origin, root)


def _replica_faults(it: Host, partition_id: bytes, held: Held) -> Iterator[str]:
    group = it.scheduler.replicas.get(partition_id)
    if group is None:
        if not it.hosting.lost.get(partition_id):
            yield "it does not run, and nobody says why"
        return
    if group.trouble or group.replica.is_repairing:
        return
    log = group.log
    if log.member != held.member:
        yield f"it votes as member {log.member}"
    if (log.term, log.vote) != (held.term, held.vote) and log.term <= held.term:
        yield f"it votes, and forgot that it voted for {held.vote} in term {held.term}"
    if log.edge.next_index < held.first_index + len(held.entries):
        lost = held.first_index + len(held.entries) - log.edge.next_index
        yield f"it votes, and forgot {lost} entries"
    else:
        try:
            if entries_of(log)[: len(held.entries)] != held.entries:
                yield "it votes, and has other entries"
        except Corrupt:
            pass  # Met by a read, and mended then.


def _vanished(origin: Origin, root: Path) -> list[str]:
    return [
        f"{held.folder} is gone"
        for held in origin.held.values()
        if not (root / held.folder).is_dir()
    ]


async def all_faults(origin: Origin, cases: Iterator[Damage], folder: Path) -> list[str]:
    found = []
    for damage in cases:
        root = folder / "damaged"
        found += [f"{damage.file} {damage.what}: {f}" for f in await faults(origin, damage, root)]
        shutil.rmtree(root)
    return found


async def _main(seed: int) -> int:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        origin = await prepared(Path(folder))
        cases = list(damages(origin, seed, whole=True))
        print(f"{len(cases)} cases of damage to {len(origin.files)} files", flush=True)
        found = 0
        for number, damage in enumerate(cases, 1):
            for fault in await all_faults(origin, iter([damage]), Path(folder)):
                found += 1
                print(fault, flush=True)
            if number % 500 == 0:
                print(f"{number} done", flush=True)
    print(f"{found} faults" if found else "nothing is lost")
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(asyncio.run(_main(parser.parse_args().seed)))
