"""Strikes real brokers with a random mix of faults, for minutes or hours (F43).

    python -m quivermq.testing.soak --minutes 60 --seed 7

In each round, producers, readers and consumers work on a topic while faults strike, one after
another and overlapping. Then everything heals, every replica is read, the consumers finish their
work, and independent checkers compare. The faults come from a seed, so that a failure can be tried
again; how processes and threads interleave is up to the machine.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Final

from rich.console import Console

from quivermq.errors import TopicNotFound
from quivermq.testing.cluster import Cluster, ClusterFaults, Undo
from quivermq.testing.trials import ConsumerLoad, ConsumerPlan, check_group, trial

SETTINGS: Final = {"tick_ms": 50, "segment_bytes": 1 << 20}
ROUND_S: Final = 30.0
_PROGRESS_S: Final = 60.0
_DRAIN_S: Final = 180.0
_LASTING_CHANCE: Final = 0.1
_CONSUMER_DIES_CHANCE: Final = 0.3
_OVERLAP_MAX: Final = 2
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)


class Soak:
    """Rounds of faults against one cluster."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        if cluster.wiring is None:
            raise ValueError("a soak needs a proxied cluster: Cluster(proxied=True)")
        self._cluster = cluster
        self._dice = dice
        self._faults = ClusterFaults(cluster, cluster.wiring, dice)
        self._began = time.monotonic()
        self.struck: Counter[str] = Counter()
        self.acked = 0
        """Messages that producers were told are stored."""
        self.consumed = 0
        """Messages whose acknowledgement a broker confirmed."""

    def run_round(self, number: int, seconds: float) -> None:
        """Load one topic, strike with faults for so long, and check."""
        topic = f"round-{number}"
        lost = self._faults.lost_disk
        lost.clear()
        plan = ConsumerPlan(topic, "soak", max_messages=200, seed=number)
        with ConsumerLoad(self._cluster, plan, threads=2) as consumers:
            consumers.add_thread("pushed", is_pushed=True)
            with trial(
                self._cluster,
                topic=topic,
                partitions=3,
                seed=number,
                may_fail=True,
                loses_disk=lost,
            ) as load:
                consumers.add_process()
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    self._strike(consumers)
                    load.wait_progress(timeout=_PROGRESS_S)
                    consumers.wait_progress(timeout=_PROGRESS_S)
            self._cluster.start()
            consumers.drain(_DRAIN_S)
        self.acked += sum(load.history.acked_count(place) for place in load.places)
        self.consumed += consumers.history.acked_count
        with self._cluster.connect() as client:
            check_group(self._cluster, client, topic, consumers.history)
            client.delete_topic(topic)
            with suppress(TopicNotFound):
                client.delete_topic(f"{topic}.dlq")

    def _strike(self, consumers: ConsumerLoad) -> None:
        """Begin a lasting fault, or a few passing ones that overlap; then end all of them."""
        dice, faults = self._dice, self._faults
        if dice.random() < _CONSUMER_DIES_CHANCE:
            self.tell("kill a consumer")
            self.struck["kill_consumer"] += 1
            consumers.processes[-1].kill()
            consumers.add_process()
        if dice.random() < _LASTING_CHANCE:
            chosen = [dice.choice(faults.lasting())]
        else:
            chosen = dice.sample(faults.passing(), dice.randint(1, _OVERLAP_MAX))
        undo: list[Undo] = []
        for fault in chosen:
            self.tell(fault.__name__)
            self.struck[fault.__name__] += 1
            undo.append(fault())
            time.sleep(dice.uniform(0.0, 2.0))
        dice.shuffle(undo)
        for one in undo:
            one()

    def tell(self, what: str) -> None:
        CONSOLE.print(f"{time.monotonic() - self._began:8.1f} s  {what}")


def soak(seconds: float, seed: int, round_s: float = ROUND_S) -> Soak:
    """Run rounds until the time is over; raises what a checker finds."""
    dice = Random(seed)
    nodes = dice.choice((3, 3, 5))
    with Cluster(nodes, settings=SETTINGS, proxied=True) as cluster:
        run = Soak(cluster, dice)
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            run.tell(f"round {number}, {len(cluster.nodes)} brokers")
            run.run_round(number, min(round_s, max(1.0, end - time.monotonic())))
            number += 1
        return run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m quivermq.testing.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; random by default")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    CONSOLE.print(f"seed {seed}")
    run = soak(options.minutes * 60, seed)
    struck = ", ".join(f"{name} {count}" for name, count in run.struck.most_common())
    CONSOLE.print(
        f"seed {seed} passed: {run.acked:,} messages stored, {run.consumed:,} consumed, {struck}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
