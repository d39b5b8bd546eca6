"""The mix of faults of one seed: which of them strike, and how often."""

from collections.abc import Callable
from typing import Final

from quivermq.batches import Index
from quivermq.testing import damage_faults, machine_faults, network_faults
from quivermq.testing.stage import Stage

Fault = Callable[[Stage], None]


def change_membership(stage: Stage) -> None:
    """F21: members come and go while the cluster serves."""
    if stage.dice.random() < 0.3:
        stage.operator.retire_removed()
    stage.operator.change_something()
    stage.world.story.strike("membership", f"members are {stage.world.watch.members}")


def retention(stage: Stage) -> None:
    """F25: the front of the log goes, so that who lags behind needs a checkpoint."""
    for host in stage.world.running:
        if stage.dice.random() < 0.7:
            kept = stage.dice.choice((0, 5, 50))
            host.drop_before(Index(max(1, host.replica.applied_index + 1 - kept)))
    stage.world.story.strike("retention", "old segments go")


def transfer_leader(stage: Stage) -> None:
    """Leadership is handed over, to a member that may or may not keep up."""
    leader = stage.world.leader
    if leader is not None:
        target = stage.dice.choice(stage.world.watch.members)
        leader.transfer_leader(target)
        stage.world.story.strike("transfer", f"from node {leader.member} to {target}")


def dead_letters_unavailable(stage: Stage) -> None:
    """F31: the topic of dead letters cannot be written for a while."""
    topic = stage.world.around.dead_letters
    topic.is_available = False

    def return_() -> None:
        topic.is_available = True

    stage.after(stage.between(500, 8_000), return_)
    stage.world.story.strike("no dead letters", "their topic is unavailable")


def lull(stage: Stage) -> None:
    """No fault, but the hour for some: clients have nothing to do, so that groups fall asleep."""
    duration_ms = stage.between(500, 6_000)
    stage.world.quiet_until_ms = stage.world.time.now_ms + round(duration_ms)
    stage.world.story.strike("lull", f"for {duration_ms:.0f} ms")


FAULTS: Final[dict[Fault, float]] = {
    machine_faults.kill: 3_000,
    machine_faults.kill_all: 12_000,
    machine_faults.power_loss: 5_000,
    machine_faults.power_loss_with_pauses: 6_000,
    machine_faults.kill_in_disk_work: 3_000,
    machine_faults.failed_disk: 5_000,
    machine_faults.full_disk: 6_000,
    machine_faults.read_only_disk: 10_000,
    machine_faults.slow_disk: 6_000,
    machine_faults.pause: 6_000,
    machine_faults.slow_node: 6_000,
    machine_faults.odd_clock: 4_000,
    machine_faults.rolling_restart: 12_000,
    network_faults.partition: 5_000,
    network_faults.one_way_partition: 6_000,
    network_faults.clog: 6_000,
    network_faults.bad_weather: 6_000,
    damage_faults.damage: 5_000,
    damage_faults.empty_disk: 15_000,
    change_membership: 3_000,
    retention: 2_500,
    transfer_leader: 3_000,
    dead_letters_unavailable: 6_000,
    lull: 6_000,
}
"""Each fault with its usual time between two strikes, in ms."""


class Nemesis:
    """Strikes with each chosen fault at its own random pace, until it is told to stop."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        dice = stage.dice
        share = dice.choice((0.15, 0.3, 0.6))
        self.chosen = {
            fault: mean_ms * dice.choice((0.5, 1.0, 3.0))
            for fault, mean_ms in FAULTS.items()
            if dice.random() < share
        }
        stage.world.story.tell(f"faults of this seed: {self.names}")
        for fault in self.chosen:
            self._plan(fault)

    @property
    def names(self) -> str:
        return ", ".join(fault.__name__.replace("_", " ") for fault in self.chosen) or "none"

    def stop(self) -> None:
        self._stage.is_over = True

    def _plan(self, fault: Fault) -> None:
        delay_ms = self._stage.dice.expovariate(1 / self.chosen[fault])
        self._stage.world.time.after_ms(delay_ms, lambda: self._strike(fault))

    def _strike(self, fault: Fault) -> None:
        if not self._stage.is_over:
            fault(self._stage)
            self._plan(fault)
