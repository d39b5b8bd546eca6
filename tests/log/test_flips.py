"""Flipped bits among everything else that a log does: what was synced is served as it was, or is
reported; the log is never shorter than it was."""

from random import Random

import pytest

from quivermq.batches import Index
from quivermq.errors import Corrupt
from quivermq.log import Log, LogSettings
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.log.entries import LOG_ID, random_entries
from tests.log.storm import FOLDER, Model

FLIPS_MAX = 2


class Flips:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.settings = LogSettings(2048, 256, 512, open_segments_max=2)
        self.log = Log.create(self.disk, FOLDER, LOG_ID, self.settings)
        self.model = Model()
        self.flips = 0

    def run(self, steps: int = 60) -> None:
        acts = (self.append, self.sync, self.cut, self.flip, self.reopen, self.drop)
        for act in self.random.choices(acts, (40, 30, 8, 4, 8, 4), k=steps):
            act()

    def append(self) -> None:
        frames = random_entries(self.random, self.log.edge, self.random.randint(1, 3))
        self.log.append(frames)
        self.model.append(frames)

    def sync(self) -> None:
        self.log.sync()
        self.model.sync()

    def cut(self) -> None:
        least = max(self.model.start.next_index, max(self.model.checkpoints, default=0))
        if least > self.model.last:
            return
        index = self.random.randint(least, self.model.last)
        try:
            self.log.cut(Index(index))
        except Corrupt:
            # Nobody knows where that entry starts; nothing was changed.
            return
        self.model.cut(index)
        assert self.log.edge == self.model.edge

    def drop(self) -> None:
        index = self.random.choice(self.log.segment_starts)
        if index <= self.model.synced + 1:
            self.log.save_checkpoint(index, b"state")
            self.log.drop_before(index)
            self.model.checkpoints[index] = b"state"
            self.model.drop(index)

    def flip(self) -> None:
        if self.flips < FLIPS_MAX:
            self.flips += 1
            path = self.random.choice([p for p in self.disk.paths() if p.endswith(".seg")])
            self.disk.flip_bit(path, self.random.randrange(8 * len(self.disk.content(path))))

    def reopen(self) -> None:
        self.sync()
        self.disk.kill()
        self.log = Log.open(self.disk, FOLDER, self.settings)
        assert self.log.edge.next_index == self.model.last + 1
        for frame in self.model.entries:
            try:
                assert self.log.read(frame.header.index, bytes_max=1) == [frame]
            except Corrupt:
                assert self.flips


@pytest.mark.parametrize("seed", range(0, 300, 50))
def test_a_flipped_bit_costs_no_other_entry_whatever_the_log_does_next(seed: int) -> None:
    for number in range(seed, seed + 50):
        Flips(number).run()
