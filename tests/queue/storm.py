"""Seeded storms: consumers, administrators and failing leaders against the naive model.

Longer than what hypothesis plays, and without its memory: `python -m tests.queue.storm --seed 7`
replays one; `--seeds 1000` runs many over all cores.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from random import Random

from rich.progress import Progress

from quivermq.errors import NotLeader, Overloaded
from quivermq.queue import partition, priority_index, working_copy
from tests.queue.lease_stage import DAY_MS, DeskStage

STEPS = 250
CHECK_EVERY = 5
GROUPS = ("a", "b", "c")
SMALL_INDEX = 6


def storm(seed: int) -> None:
    """Play one seed; raises at the first broken promise."""
    dice = Random(seed)
    usual = priority_index.STRETCHES_MAX, partition._FLATTEN_EVERY
    trimmed_at_once = working_copy.TRIMMED_AT_ONCE
    # Now and then an index so small that priorities are forgotten all the time.
    is_small = dice.random() < 0.3
    if is_small:
        priority_index.STRETCHES_MAX, partition._FLATTEN_EVERY = SMALL_INDEX, dice.choice((1, 3))
    working_copy.TRIMMED_AT_ONCE = 1 if seed % 3 else trimmed_at_once
    try:
        stage = DeskStage(is_fair=not is_small)
        acts = {act: dice.choice((0.2, 1.0, 3.0)) for act in ACTS}
        for step in range(STEPS):
            (act,) = dice.choices(list(acts), list(acts.values()))
            act(stage, dice)
            if step % CHECK_EVERY == 0:
                stage.check()
        stage.check()
        stage.finish()
    finally:
        working_copy.TRIMMED_AT_ONCE = trimmed_at_once
        priority_index.STRETCHES_MAX, partition._FLATTEN_EVERY = usual


def append(stage: DeskStage, dice: Random) -> None:
    delay_ms = dice.choice((0, 0, 0, 1, 700, 5_000))
    stage.append(dice.randint(1, 9), dice.choice((0, 0, 3, 7)), delay_ms)


def commit(stage: DeskStage, dice: Random) -> None:
    stage.commit(dice.randint(0, 6))


def poll(stage: DeskStage, dice: Random) -> None:
    stage.poll(
        dice.choice(GROUPS),
        dice.choice((1, 2, 3, 7, 100)),
        auto_ack=dice.random() < 0.1,
        consumer=dice.randint(1, 3),
        visibility_ms=dice.choice((500, 1_000, 9_000)),
        latest=dice.random() < 0.3,
    )


def settle(stage: DeskStage, dice: Random) -> None:
    if not stage.grants:
        return
    grant = dice.choice(stage.grants[-12:])
    offsets = None
    if dice.random() < 0.5:
        offsets = sorted(dice.sample(grant.offsets, dice.randint(0, len(grant.offsets))))
    how = dice.choice(("ack", "ack", "ack", "fail", "fail", "reject", "release"))
    if how == "ack":
        stage.acknowledge(grant, offsets)
    else:
        stage.settle(how, grant, offsets, dice.choice((None, None, 0, 2_000)))


def forge(stage: DeskStage, dice: Random) -> None:
    low = dice.randint(0, stage.end)
    offsets = list(range(low, dice.randint(low, stage.end + 3)))
    how = dice.choice(("ack", "ack", "fail", "reject", "release"))
    lease, group = dice.choice((1, stage.term << 32, dice.randrange(2**63))), dice.choice(GROUPS)
    consumer = dice.randint(1, 3)
    if stage.grants and dice.random() < 0.7:
        # A number that was given, and another consumer than the one that has it.
        grant = dice.choice(stage.grants[-12:])
        lease, group, consumer = grant.lease, grant.group, grant.consumer + dice.randint(1, 9)
        if dice.random() < 0.3:
            group = dice.choice([name for name in GROUPS if name != grant.group])
            consumer = grant.consumer
    stage.forge(how, group, lease, consumer, offsets)


def poll_in_vain(stage: DeskStage, dice: Random) -> None:
    stage.poll_in_vain(dice.choice(GROUPS), dice.choice((NotLeader("x"), Overloaded("x"))))


def extend(stage: DeskStage, dice: Random) -> None:
    if stage.grants:
        stage.extend(dice.choice(stage.grants[-12:]), dice.choice((100, 1_000, 20_000)))


def release_consumer(stage: DeskStage, dice: Random) -> None:
    stage.release_consumer(dice.choice(GROUPS), dice.randint(1, 3))


def pass_time(stage: DeskStage, dice: Random) -> None:
    jump_ms = dice.choice((0, 0, 0, 0, 0, 0, -3_600_000, 3_600_000, 2 * DAY_MS))
    stage.pass_time(dice.choice((1, 499, 500, 1_000, 10_000)), jump_ms)


def seek(stage: DeskStage, dice: Random) -> None:
    if dice.random() < 0.3:
        stage.seek(dice.choice(GROUPS), dice.randint(stage.model.start, stage.end))


def administer(stage: DeskStage, dice: Random) -> None:
    kinds = (
        "drop", "forget", "trim", "cancel", "letters", "letters", "revive", "revive", "revive",
        "claim", "commit",
    )  # fmt: skip
    kind = dice.choice(kinds)
    group = dice.choice(GROUPS)
    if kind == "drop":
        stage.drop(group)
    elif kind == "forget":
        stage.forget(group)
    elif kind == "trim":
        stage.trim(dice.choice(stage.batch_starts))
    elif kind == "cancel":
        low = dice.randint(0, stage.end)
        stage.cancel(list(range(low, dice.randint(low, stage.end))))
    elif kind == "letters":
        low = dice.randint(0, stage.end)
        high = dice.randint(low, stage.end)
        stage.settle_letters(low, high, purged=dice.random() < 0.5)
    elif kind == "revive":
        stage.revive(group, dice.randint(1, 40), dice.choice((1, 3, 100)))
    elif kind == "claim":
        stage.claim(group, dice.randint(1, 3))
    else:
        stage.commit_offset(group, dice.randint(0, 50), dice.randint(0, 3))


def move_dead_letters(stage: DeskStage, dice: Random) -> None:
    stage.move_dead_letters(stored=dice.randint(0, 3), buried=dice.randint(0, 3))


def fail_over(stage: DeskStage, dice: Random) -> None:
    if dice.random() < 0.3:
        stage.lose_leadership(dice.randint(0, 4))
    else:
        stage.restart()


ACTS = (
    append, commit, poll, poll, settle, settle, settle, extend, release_consumer, pass_time, seek,
    administer, move_dead_letters, fail_over, forge, poll_in_vain,
)  # fmt: skip


def run_seed(seed: int) -> tuple[int, str]:
    try:
        storm(seed)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}"
    return seed, ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.queue.storm", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one, with its traceback")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        storm(chosen.seed)
        return 0
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    with Progress(transient=True) as progress, ProcessPoolExecutor() as pool:
        for seed, failure in progress.track(
            pool.map(run_seed, seeds, chunksize=4), total=len(seeds), description="storms"
        ):
            if failure:
                pool.shutdown(cancel_futures=True)
                print(f"{failure}\nreplay: python -m tests.queue.storm --seed {seed}")
                return 1
    print(f"{len(seeds)} storms of {STEPS} steps passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
