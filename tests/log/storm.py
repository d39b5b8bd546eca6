"""Seeded storms: a log on a simulated disk under crashes, power losses and failing operations.

A storm plays random operations against the log and against a model that is a plain list, kills it
at any disk operation, opens it again and compares. `python -m tests.log.storm --seed 7` replays
one; `--seeds 1000` runs many over all cores.
"""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from rich.progress import Progress

from quivermq.batches import Frame, Index
from quivermq.errors import StorageFailed, StorageFull
from quivermq.log import Checkpoint, Edge, Log, LogSettings, Verification
from quivermq.testing.simulated_disk import Faults, Killed, SimulatedDisk
from tests.log.entries import LOG_ID, random_entries

FOLDER = "log/orders/0"


@dataclass
class Model:
    """What a log must hold: the naive way."""

    entries: list[Frame] = field(default_factory=list)
    start: Edge = field(default_factory=Edge)
    synced: int = 0
    """The last index that is durable."""
    term: int = 0
    vote: int = 0
    checkpoints: dict[int, bytes] = field(default_factory=dict)

    @property
    def edge(self) -> Edge:
        edge = self.start
        for frame in self.entries:
            edge = edge.after(frame.header)
        return edge

    @property
    def last(self) -> int:
        return self.start.next_index - 1 + len(self.entries)

    def append(self, frames: list[Frame]) -> None:
        self.entries += frames

    def sync(self) -> None:
        self.synced = self.last

    def cut(self, index: int) -> None:
        del self.entries[index - self.start.next_index :]
        self.synced = min(self.synced, self.last)

    def drop(self, index: int) -> None:
        while self.start.next_index < index:
            self.start = self.start.after(self.entries.pop(0).header)
        self.checkpoints = {at: data for at, data in self.checkpoints.items() if at >= index}

    def reset(self, checkpoint: Checkpoint) -> None:
        self.entries, self.start = [], checkpoint.edge
        self.synced = self.last
        self.checkpoints = {checkpoint.edge.next_index: checkpoint.data}

    def mismatch(self, log: Log, *, lossless: bool) -> str:
        """How the log differs from all that this model allows; empty if it does not."""
        if log.damage:
            return f"damage: {log.damage[0]}"
        if log.start != self.start or log.first_index != self.start.next_index:
            return f"starts at {log.start}, not at {self.start}"
        last = log.edge.next_index - 1
        least = self.last if lossless else self.synced
        if not least <= last <= self.last:
            return f"ends at {last}, not in {least} to {self.last}"
        if (log.term, log.vote) != (self.term, self.vote):
            return f"voted {log.term, log.vote}, not {self.term, self.vote}"
        found = list(log.frames(log.first_index))
        if found != self.entries[: len(found)] or len(found) != last - log.first_index + 1:
            return "other entries"
        kept = {int(at): log.load_checkpoint(at).data for at in log.checkpoints()}
        if kept != self.checkpoints:
            return f"checkpoints {sorted(kept)}, not {sorted(self.checkpoints)}"
        return ""


class Storm:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.settings = LogSettings(
            segment_bytes=self.random.choice((2048, 4096, 16384)),
            allocation_bytes_min=self.random.choice((256, 1024)),
            allocation_bytes_step=self.random.choice((512, 4096)),
            open_segments_max=self.random.randint(1, 3),
        )
        self.story: list[str] = [f"seed {seed}, {self.settings}"]
        self.model = Model()
        self.crashes = 0

    def run(self, operations: int = 60) -> None:
        self.disk.make_folder("log/orders")
        self.disk.sync_folder("log")
        self.log = Log.create(self.disk, FOLDER, LOG_ID, self.settings)
        try:
            for _ in range(operations):
                self.step()
            self.crash_and_compare([self.model], power=True)
        except BaseException as error:
            error.add_note("\n".join(self.story[:1] + self.story[-12:]))
            raise

    def step(self) -> None:
        """One operation, perhaps one that the disk stops."""
        name, act, follow = self.choose()
        before = deepcopy(self.model)
        self.set_fault()
        try:
            act()
        except Killed:
            self.told(f"{name}: killed")
            follow()
            self.crash_and_compare([before, self.model])
        except StorageFull:
            self.told(f"{name}: refused for lack of space")
            self.check_unchanged(before)
        except StorageFailed as error:
            self.told(f"{name}: {error}")
            if "fenced" not in str(error):
                # A read failed before anything was written.
                self.check_unchanged(before)
                return
            follow()
            self.check_fenced()
            self.crash_and_compare([before, self.model])
        else:
            self.told(name)
            follow()
            if self.random.random() < 0.1:
                self.crash_and_compare([self.model])
        self.disk.faults = Faults()

    def choose(self) -> tuple[str, Callable[[], object], Callable[[], object]]:
        """An operation: its name, how the log does it, how the model does it."""
        log, model, random = self.log, self.model, self.random
        kind = random.choices(
            ("append", "sync", "vote", "cut", "checkpoint", "drop", "reset"),
            (40, 25, 6, 8, 10, 8, 2),
        )[0]
        if kind == "append":
            frames = random_entries(random, log.edge, model.term or 1)
            return (
                f"append {len(frames)} at {log.edge.next_index}",
                (lambda: log.append(frames)),
                lambda: model.append(frames),
            )
        if kind == "vote":
            term, vote = model.term + random.randint(1, 2), random.randint(0, 3)
            return (
                f"vote {vote} in {term}",
                lambda: log.save_vote(term, vote),
                (lambda: model.__dict__.update(term=term, vote=vote)),
            )
        if kind == "cut" and model.entries:
            index = random.randint(model.start.next_index, model.last)
            index = max(index, max(model.checkpoints, default=0))
            return f"cut at {index}", lambda: log.cut(Index(index)), lambda: model.cut(index)
        if kind == "checkpoint":
            return self.choose_checkpoint()
        if kind == "drop":
            return self.choose_drop()
        if kind == "reset":
            edge = Edge(
                Index(log.edge.next_index + random.randint(0, 50)),
                log.edge.next_offset,
                log.edge.term,
                log.edge.timestamp_ms,
            )
            checkpoint = Checkpoint(edge, random.randbytes(random.randint(0, 3000)))
            return (
                f"reset to {edge.next_index}",
                lambda: log.reset(checkpoint),
                (lambda: model.reset(checkpoint)),
            )
        return "sync", log.sync, model.sync

    def choose_checkpoint(self) -> tuple[str, Callable[[], object], Callable[[], object]]:
        log, model = self.log, self.model
        starts = [at for at in log.segment_starts if at <= model.synced + 1]
        if not starts:
            return "sync", log.sync, model.sync
        at = self.random.choice(starts)
        data = self.random.randbytes(self.random.randint(0, 2000))
        return (
            f"checkpoint {at}",
            lambda: log.save_checkpoint(at, data),
            (lambda: model.checkpoints.__setitem__(at, data)),
        )

    def choose_drop(self) -> tuple[str, Callable[[], object], Callable[[], object]]:
        log, model = self.log, self.model
        index = Index(self.random.randint(model.start.next_index, model.last + 1))
        allowed = [at for at in log.segment_starts if at in model.checkpoints and at <= index]
        first = max([*allowed, model.start.next_index])
        return f"drop before {index}", lambda: log.drop_before(index), lambda: model.drop(first)

    def set_fault(self) -> None:
        mood = self.random.random()
        faults = self.disk.faults
        if mood < 0.35:
            faults.fail_operation = self.disk.operations + self.random.randint(0, 14)
            faults.failure = self.random.choice((Killed, Killed, StorageFailed, StorageFull))
        elif mood < 0.40:
            faults.read_only = True
        elif mood < 0.45:
            faults.capacity_bytes = sum(len(self.disk.content(p)) for p in self.disk.paths())

    def check_unchanged(self, before: Model) -> None:
        """A refusal changes nothing, and the log goes on."""
        self.disk.faults = Faults()
        fault = before.mismatch(self.log, lossless=True)
        assert not fault, f"after a refusal: {fault}"

    def check_fenced(self) -> None:
        """After any other failure the log takes no more writes, whatever the disk does."""
        self.disk.faults = Faults()
        try:
            self.log.save_vote(10**6, 1)
        except StorageFailed:
            return
        raise AssertionError("a log that failed took a vote")

    def crash_and_compare(self, allowed: list[Model], *, power: bool | None = None) -> None:
        self.crashes += 1
        power = self.random.random() < 0.6 if power is None else power
        self.told("power loss" if power else "killed")
        self.disk.faults = Faults()
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()
        report = Verification(self.disk, FOLDER, self.settings).run()
        assert not report.is_damaged, f"verify invents damage: {report.findings}"
        power |= self.reopen_through_crashes()
        lossless = not power and len(allowed) == 1
        faults = [model.mismatch(self.log, lossless=lossless) for model in allowed]
        assert "" in faults, f"after the crash: {' / '.join(faults)}"
        self.model = deepcopy(allowed[faults.index("")])
        self.model.cut(self.log.edge.next_index)
        # Opening syncs what it keeps.
        self.model.sync()

    def reopen_through_crashes(self) -> bool:
        """Open the log, with crashes in the middle of opening it; True if power was lost too."""
        power = False
        for _ in range(self.random.choice((0, 0, 1, 3))):
            self.disk.faults.fail_operation = self.disk.operations + self.random.randint(0, 25)
            self.disk.faults.failure = Killed
            try:
                Log.open(self.disk, FOLDER, self.settings)
            except Killed:
                self.told("killed while opening")
            self.disk.faults = Faults()
            if self.random.random() < 0.5:
                self.disk.lose_power()
                power = True
            else:
                self.disk.kill()
        self.log = Log.open(self.disk, FOLDER, self.settings)
        self.told(f"opened: {self.log.edge} {self.log.notes}")
        return power

    def told(self, event: str) -> None:
        self.story.append(event)


def run_seed(seed: int) -> tuple[int, int, str]:
    """The seed, how many crashes it saw, and the story of its failure if it failed."""
    storm = Storm(seed)
    try:
        storm.run()
    except Exception as error:
        story = "\n  ".join(storm.story[:1] + storm.story[-12:])
        return seed, storm.crashes, f"{type(error).__name__}: {error}\n  {story}"
    return seed, storm.crashes, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--seed", type=int, help="replay this one")
    options = parser.parse_args()
    if options.seed is not None:
        Storm(options.seed).run()
        print(f"seed {options.seed} passed")
        return 0
    crashes = 0
    with ProcessPoolExecutor() as pool, Progress() as progress:
        task = progress.add_task("storms", total=options.seeds)
        for seed, seen, failure in pool.map(run_seed, range(options.seeds), chunksize=16):
            progress.advance(task)
            crashes += seen
            if failure:
                pool.shutdown(cancel_futures=True)
                progress.stop()
                print(f"seed {seed} failed: {failure}")
                print(f"replay: python -m tests.log.storm --seed {seed}")
                return 1
    print(f"{options.seeds} seeds passed, {crashes:,} crashes survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
