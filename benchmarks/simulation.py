"""The processor time of simulated seconds: `python -m benchmarks.simulation [--first S --seeds N]`.

Runs seeds of the simulator of whole brokers, and samples by the processor clock whose code runs:
the innermost function of this project counts, with whatever it calls in Python's library, in
protobuf and in Arrow. Figures of one machine compare only within one run, and better by processor
time than by the clock on the wall.
"""

import argparse
import logging
import signal
from collections import Counter
from time import process_time
from types import FrameType

import quivermq
from quivermq.testing.simulation import run_seed

SAMPLED_EVERY_S = 0.002
ROOT = f"{next(iter(quivermq.__path__))}/"
PARTS: dict[str, tuple[str, ...]] = {
    "simulated network and digest": ("testing/virtual/network", "testing/virtual/story"),
    "simulated loops, clocks, processes": ("testing/virtual/",),
    "simulated disk": ("testing/simulated_disk",),
    "users and judges": ("testing/",),
    "log": ("log/", "node/disk"),
    "Raft core": ("raft/",),
    "replicas": ("replica/", "node/hosted_replica", "node/replica_scheduler"),
    "links between brokers": ("node/peer",),
    "packets and protobuf": ("wire/",),
    "batches and Arrow": ("batches/",),
    "queue": ("queue/",),
    "requests in brokers": ("node/", "transports/", "cluster/"),
    "clients": ("client/",),
}
"""The first that fits counts."""


class Sampler:
    """Counts in which part of the code the processor is."""

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self._parts: dict[str, str] = {}

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLED_EVERY_S, SAMPLED_EVERY_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        while frame is not None and not frame.f_code.co_filename.startswith(ROOT):
            frame = frame.f_back
        file = frame.f_code.co_filename if frame is not None else ""
        if file not in self._parts:
            self._parts[file] = part_of(file.removeprefix(ROOT))
        self.samples[self._parts[file]] += 1


def part_of(module: str) -> str:
    return next((part for part, heads in PARTS.items() if module.startswith(heads)), "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.disable()
    simulated_s = used_s = 0.0
    events, sampler = 0, Sampler()
    for seed in range(options.first, options.first + options.seeds):
        began = process_time()
        sampler.start()
        outcome = run_seed(seed)
        sampler.stop()
        used_s += process_time() - began
        simulated_s += outcome.virtual_ms / 1000
        events += outcome.events
        print(f"seed {seed}: {'failed' if outcome.failure else 'passed'}", flush=True)
    print(
        f"{simulated_s:.1f} simulated seconds with {events:,} events in {used_s:.1f} s of one "
        f"core: {simulated_s / used_s:.1f} a second, {used_s / events * 1e6:.0f} us an event"
    )
    total = sampler.samples.total()
    for part, count in sampler.samples.most_common():
        print(f"| {part} | {100 * count / total:.0f} % |")


if __name__ == "__main__":
    main()
