"""The log against a plain list, in every order of operations that hypothesis thinks of."""

from copy import deepcopy
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quivermq.batches import Index
from quivermq.errors import StorageFailed
from quivermq.log import Checkpoint, Edge, Log, LogSettings
from quivermq.testing.simulated_disk import Faults, Killed, SimulatedDisk
from tests.log.entries import LOG_ID, entry
from tests.log.logs import FOLDER
from tests.log.storm import Model

SIZES = st.lists(st.integers(0, 900), min_size=1, max_size=5)
FAILURES = st.sampled_from([None, None, None, Killed, StorageFailed])


class LogMachine(RuleBasedStateMachine):
    """Operations on a log, each of which the disk may stop at any of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(Random(0))
        self.settings = LogSettings(
            segment_bytes=2048, allocation_bytes_min=300, allocation_bytes_step=700
        )
        self.log = Log.create(self.disk, FOLDER, LOG_ID, self.settings)
        self.model = Model()

    @rule(
        sizes=SIZES,
        term=st.integers(1, 3),
        count=st.integers(0, 4),
        stop=st.integers(0, 12),
        failure=FAILURES,
    )
    def append(self, sizes, term, count, stop, failure) -> None:
        edge, group = self.log.edge, []
        for size in sizes:
            frame = entry(edge, term=term, count=count, body=b"b" * size)
            edge = edge.after(frame.header)
            group.append(frame)
        self.do(lambda: self.log.append(group), lambda m: m.append(group), stop, failure)

    @rule(stop=st.integers(0, 3), failure=FAILURES)
    def sync(self, stop, failure) -> None:
        self.do(self.log.sync, Model.sync, stop, failure)

    @rule(rise=st.integers(1, 2), vote=st.integers(0, 3), stop=st.integers(0, 4), failure=FAILURES)
    def save_vote(self, rise, vote, stop, failure) -> None:
        term = self.model.term + rise
        self.do(
            lambda: self.log.save_vote(term, vote),
            lambda m: m.__dict__.update(term=term, vote=vote),
            stop,
            failure,
        )

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data(), stop=st.integers(0, 14), failure=FAILURES)
    def cut(self, data, stop, failure) -> None:
        low = max(self.model.start.next_index, *self.model.checkpoints, 0)
        index = data.draw(st.integers(min(low, self.model.last + 1), self.model.last + 1))
        self.do(lambda: self.log.cut(Index(index)), lambda m: m.cut(index), stop, failure)

    @rule(data=st.data(), state=st.binary(max_size=300), stop=st.integers(0, 5), failure=FAILURES)
    def save_checkpoint(self, data, state, stop, failure) -> None:
        starts = [start for start in self.log.segment_starts if start <= self.model.synced + 1]
        if starts:
            at = data.draw(st.sampled_from(starts))
            self.do(
                lambda: self.log.save_checkpoint(at, state),
                lambda m: m.checkpoints.update({int(at): state}),
                stop,
                failure,
            )

    @rule(data=st.data(), stop=st.integers(0, 12), failure=FAILURES)
    def drop_before(self, data, stop, failure) -> None:
        index = data.draw(st.integers(self.model.start.next_index, self.model.last + 1))
        kept = [s for s in self.log.segment_starts if s in self.model.checkpoints and s <= index]
        first = max([*kept, self.model.start.next_index])
        self.do(lambda: self.log.drop_before(Index(index)), lambda m: m.drop(first), stop, failure)

    @rule(ahead=st.integers(0, 9), stop=st.integers(0, 20), failure=FAILURES)
    def reset(self, ahead, stop, failure) -> None:
        edge = self.log.edge
        checkpoint = Checkpoint(Edge(Index(edge.next_index + ahead), *edge[1:]), b"state")
        self.do(lambda: self.log.reset(checkpoint), lambda m: m.reset(checkpoint), stop, failure)

    @rule(power=st.booleans(), seed=st.integers(0, 2**32))
    def crash(self, power, seed) -> None:
        self.restart([self.model], power, seed)

    @invariant()
    def the_log_equals_the_model(self) -> None:
        assert self.model.mismatch(self.log, lossless=True) == ""

    def do(self, act, follow, stop, failure) -> None:
        before = deepcopy(self.model)
        follow(self.model)
        if failure is not None:
            self.disk.faults.fail_operation = self.disk.operations + stop
            self.disk.faults.failure = failure
        try:
            act()
        except (Killed, StorageFailed):
            self.restart([before, self.model], stop % 2 == 0, stop)
        self.disk.faults = Faults()

    def restart(self, allowed, power, seed) -> None:
        self.disk.faults = Faults()
        self.disk.random.seed(seed)
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()
        self.log = Log.open(self.disk, FOLDER, self.settings)
        faults = [model.mismatch(self.log, lossless=False) for model in allowed]
        assert "" in faults, faults
        self.model = deepcopy(allowed[faults.index("")])
        self.model.cut(self.log.edge.next_index)
        self.model.sync()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
