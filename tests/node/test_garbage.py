"""Full garbage collections: only of a process that has grown."""

import asyncio
import gc
import subprocess
import sys

from quivermq.node.garbage import GROWTH_BYTES_MIN, GarbagePolicy, resident_bytes
from tests.transports.stage import on_loop

MIB = 1 << 20

IN_A_PROCESS = """
import asyncio, gc
from quivermq.node.garbage import GarbagePolicy

class Node:
    pass

def leave_cycle():
    one, other = Node(), Node()
    one.other, other.other = other, one

async def main():
    GarbagePolicy().start()
    full = []
    gc.callbacks.append(lambda phase, info: full.append(info) if info["generation"] == 2 else None)
    kept = [[number] for number in range(400_000)]
    for _ in range(200_000):
        leave_cycle()
    alive = sum(isinstance(found, Node) for found in gc.get_objects())
    print(len(full), alive < 60_000, len(kept))

asyncio.run(main())
"""


def test_objects_that_stay_are_not_walked_over_and_young_cycles_are_still_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "True", "400000"]


@on_loop
async def test_only_a_process_that_has_grown_is_looked_through() -> None:
    sizes = [100 * MIB]
    before = gc.get_threshold()
    policy = GarbagePolicy(lambda: sizes[0])
    try:
        policy.start()
        for size, collections in (
            (100 * MIB + GROWTH_BYTES_MIN, 0),
            (101 * MIB + GROWTH_BYTES_MIN, 1),
            (350 * MIB + GROWTH_BYTES_MIN, 1),
            (1024 * MIB, 2),
            (1500 * MIB, 2),
        ):
            sizes[0] = size
            policy.look()
            assert policy.full_collections == collections, size // MIB
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    await asyncio.sleep(0)


def test_a_process_knows_its_size() -> None:
    ballast = bytearray(64 * MIB)
    with_it = resident_bytes()
    del ballast
    assert with_it - resident_bytes() > 32 * MIB
