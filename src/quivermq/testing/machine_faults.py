"""Faults of single machines: crashes, power losses, pauses, slow and full disks, odd clocks."""

from functools import partial

from quivermq.errors import StorageFailed
from quivermq.log.simulated_disk import Killed
from quivermq.testing.host import Host
from quivermq.testing.stage import Stage

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
DISK_OPERATIONS_AHEAD = 14
"""A fault in the middle of disk work strikes within so many operations."""


def kill(stage: Stage) -> None:
    """F1: a process dies, often the leader's."""
    host = stage.somebody()
    if host is not None:
        host.crash("killed", power=False, down_ms=stage.between(50, 4_000))
        stage.world.story.strike("kill", f"node {host.member}")


def kill_all(stage: Stage) -> None:
    """F2: every process dies at once."""
    for host in stage.world.running:
        host.crash("killed with all", power=False, down_ms=stage.between(50, 2_000))
    stage.world.story.strike("kill all", "everybody")


def power_loss(stage: Stage) -> None:
    """F3: one, a majority, or all machines lose power."""
    hosts = stage.several()
    for host in hosts:
        host.crash("loses power", power=True, down_ms=stage.between(50, 3_000))
    stage.world.story.strike("power loss", f"nodes {[host.member for host in hosts]}")


def power_loss_with_pauses(stage: Stage) -> None:
    """F4: one machine loses power while others stand still."""
    host = stage.somebody()
    if host is None:
        return
    for other in stage.world.running:
        if other is not host and stage.dice.random() < 0.6:
            other.pause(stage.between(500, 3_000))
    host.crash("loses power", power=True, down_ms=stage.between(50, 1_000))
    stage.world.story.strike("power loss with pauses", f"node {host.member}")


def kill_in_disk_work(stage: Stage) -> None:
    """F1, F3: a process dies in the middle of a write, a sync, a rename."""
    host = stage.somebody()
    if host is not None:
        _fail_soon(stage, host, Killed)
        stage.world.story.strike("kill in disk work", f"node {host.member}")


def failed_disk(stage: Stage) -> None:
    """F17: an operation of a disk fails, and nobody knows what it did."""
    host = stage.somebody()
    if host is not None:
        _fail_soon(stage, host, StorageFailed)
        stage.world.story.strike("failed disk", f"node {host.member}")


def _fail_soon(stage: Stage, host: Host, failure: type[BaseException]) -> None:
    ahead = stage.dice.randint(0, DISK_OPERATIONS_AHEAD)
    host.disk.faults.fail_operation = host.disk.operations + ahead
    host.disk.faults.failure = failure


def full_disk(stage: Stage) -> None:
    """F16: no space left, and space again after a while."""
    host = stage.somebody()
    if host is None:
        return
    used = sum(len(host.disk.content(path)) for path in host.disk.paths())
    host.disk.faults.capacity_bytes = used + stage.dice.choice((0, 500, 5_000))

    def free() -> None:
        host.disk.faults.capacity_bytes = None

    stage.after(stage.between(500, 6_000), free)
    stage.world.story.strike("full disk", f"node {host.member}")


def read_only_disk(stage: Stage) -> None:
    """F18: a disk takes no more writes for a while."""
    host = stage.somebody()
    if host is None:
        return
    host.disk.faults.read_only = True

    def remount() -> None:
        host.disk.faults.read_only = False

    stage.after(stage.between(500, 4_000), remount)
    stage.world.story.strike("read-only disk", f"node {host.member}")


def slow_disk(stage: Stage) -> None:
    """F19: one node's disk takes 0.2 to 5 seconds for everything."""
    host = stage.somebody()
    if host is None:
        return
    host.condition.disk_ms_min = stage.between(1, 200)
    host.condition.disk_ms_max = stage.between(200, 5_000)

    def recover() -> None:
        host.condition.disk_ms_min, host.condition.disk_ms_max = 0.1, 3.0

    stage.after(stage.between(1_000, 8_000), recover)
    stage.world.story.strike("slow disk", f"node {host.member}")


def pause(stage: Stage) -> None:
    """F5: a process is stopped for a while and goes on as if nothing had happened."""
    host = stage.somebody()
    if host is not None:
        duration_ms = stage.between(300, 12_000)
        host.pause(duration_ms)
        stage.world.story.strike("pause", f"node {host.member} for {duration_ms:.0f} ms")


def slow_node(stage: Stage) -> None:
    """F42: a node gets to everything late."""
    host = stage.somebody()
    if host is None:
        return
    host.condition.lag_ms = stage.between(20, 600)

    def recover() -> None:
        host.condition.lag_ms = 0.0

    stage.after(stage.between(1_000, 6_000), recover)
    stage.world.story.strike("slow node", f"node {host.member}")


def odd_clock(stage: Stage) -> None:
    """F20: a clock jumps by up to an hour, a day or a year, or runs wrong from now on."""
    host = stage.somebody()
    if host is None:
        return
    if stage.dice.random() < 0.6:
        farthest_ms = stage.dice.choice((HOUR_MS, 25 * HOUR_MS, YEAR_MS))
        by_ms = stage.dice.randint(-farthest_ms, farthest_ms)
        host.clock.jump(by_ms)
        stage.world.story.strike("odd clock", f"node {host.member} jumps by {by_ms} ms")
    else:
        rate = stage.dice.uniform(0.85, 1.15)
        host.clock.drift(rate)
        stage.world.story.strike("odd clock", f"node {host.member} runs at {rate:.2f}")


def rolling_restart(stage: Stage) -> None:
    """F24: every node is restarted, one after another."""
    for number, host in enumerate(stage.world.running):
        restart = partial(host.crash, "restarted", power=False, down_ms=200)
        stage.after(number * stage.between(300, 1_500), restart)
    stage.world.story.strike("rolling restart", "everybody in turn")
