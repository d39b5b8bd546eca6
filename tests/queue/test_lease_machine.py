"""The lease manager and the partition against a naive model, in every order that hypothesis thinks
of.

`make sim` plays many more steps from seeds: `python -m tests.queue.storm --seeds 1000`.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.queue.lease_stage import DeskStage
from tests.queue.storm import storm

GROUPS = st.sampled_from(["a", "b"])
CONSUMERS = st.integers(1, 3)
DELAYS_MS = st.sampled_from([0, 0, 0, 1, 700, 5_000])


class DeskMachine(RuleBasedStateMachine):
    """Everything that can happen to a partition's groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = DeskStage()

    @rule(count=st.integers(1, 9), priority=st.integers(0, 7), delay_ms=DELAYS_MS)
    def append(self, count, priority, delay_ms) -> None:
        self.stage.append(count, priority, delay_ms)

    @rule(count=st.integers(0, 5))
    def commit(self, count) -> None:
        self.stage.commit(count)

    @rule(
        group=GROUPS,
        wanted=st.sampled_from([1, 2, 3, 7, 100]),
        auto_ack=st.booleans(),
        consumer=CONSUMERS,
        visibility_ms=st.sampled_from([500, 1_000, 9_000]),
        latest=st.booleans(),
    )
    def poll(self, group, wanted, auto_ack, consumer, visibility_ms, latest) -> None:
        self.stage.poll(
            group,
            wanted,
            auto_ack=auto_ack,
            consumer=consumer,
            visibility_ms=visibility_ms,
            latest=latest,
        )

    @precondition(lambda self: self.stage.grants)
    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "ack", "fail", "reject", "release"]),
        delay_ms=st.sampled_from([None, None, 0, 2_000]),
    )
    def settle(self, data, how, delay_ms) -> None:
        grant = data.draw(st.sampled_from(self.stage.grants))
        offsets = data.draw(st.none() | st.lists(st.sampled_from(grant.offsets), unique=True))
        if how == "ack":
            self.stage.acknowledge(grant, offsets)
        else:
            self.stage.settle(how, grant, offsets, delay_ms)

    @precondition(lambda self: self.stage.grants)
    @rule(data=st.data(), visibility_ms=st.sampled_from([100, 1_000, 20_000]))
    def extend(self, data, visibility_ms) -> None:
        self.stage.extend(data.draw(st.sampled_from(self.stage.grants)), visibility_ms)

    @rule(group=GROUPS, consumer=CONSUMERS)
    def release_consumer(self, group, consumer) -> None:
        self.stage.release_consumer(group, consumer)

    @rule(
        steady_ms=st.sampled_from([1, 499, 500, 1_000, 10_000]),
        jump_ms=st.sampled_from([0, 0, 0, -3_600_000, 3_600_000]),
    )
    def pass_time(self, steady_ms, jump_ms) -> None:
        self.stage.pass_time(steady_ms, jump_ms)

    @rule(group=GROUPS, data=st.data())
    def seek(self, group, data) -> None:
        self.stage.seek(group, data.draw(st.integers(self.stage.model.start, self.stage.end)))

    @rule(group=GROUPS)
    def drop(self, group) -> None:
        self.stage.drop(group)

    @rule(group=GROUPS)
    def forget(self, group) -> None:
        self.stage.forget(group)

    @rule(data=st.data())
    def trim(self, data) -> None:
        self.stage.trim(data.draw(st.sampled_from(self.stage.batch_starts)))

    @precondition(lambda self: self.stage.end)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        low = data.draw(st.integers(0, self.stage.end - 1))
        self.stage.cancel(list(range(low, data.draw(st.integers(low, self.stage.end)))))

    @rule(data=st.data(), purged=st.booleans())
    def settle_letters(self, data, purged) -> None:
        low = data.draw(st.integers(0, self.stage.end))
        high = data.draw(st.integers(low, self.stage.end))
        self.stage.settle_letters(low, high, purged=purged)

    @rule(group=GROUPS, redrive=st.integers(1, 5), count=st.sampled_from([1, 3, 100]))
    def revive(self, group, redrive, count) -> None:
        self.stage.revive(group, redrive, count)

    @rule(group=GROUPS, epoch=st.integers(1, 3))
    def claim(self, group, epoch) -> None:
        self.stage.claim(group, epoch)

    @rule(group=GROUPS, offset=st.integers(0, 50), epoch=st.integers(0, 3))
    def commit_offset(self, group, offset, epoch) -> None:
        self.stage.commit_offset(group, offset, epoch)

    @rule(stored=st.integers(0, 3), buried=st.integers(0, 3))
    def move_dead_letters(self, stored, buried) -> None:
        self.stage.move_dead_letters(stored=stored, buried=buried)

    @rule()
    def restart(self) -> None:
        self.stage.restart()

    @rule(committed=st.integers(0, 4))
    def lose_leadership(self, committed) -> None:
        self.stage.lose_leadership(committed)

    @invariant()
    def all_is_as_promised(self) -> None:
        self.stage.check()

    def teardown(self) -> None:
        self.stage.finish()


TestDeskMachine = DeskMachine.TestCase
TestDeskMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(20))
def test_a_storm_of_operations_breaks_no_promise(seed: int) -> None:
    storm(seed)
