"""The faults of a simulated cluster, each with its mean time between two strikes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from quivermq.batches import MARK_PREFIX
from quivermq.errors import StorageFailed
from quivermq.testing.simulation.cluster import SimulatedBroker, SimulatedCluster
from quivermq.testing.simulation.gateways import SimulatedGateway
from quivermq.testing.virtual import Link, Weather

_DISK_OPERATIONS_AHEAD: Final = 40
_ADDED_MAX: Final = 2
DRIFT: Final = (0.9, 1.1)
"""Seconds that a clock which drifts shows in a second."""
_HOUR_US: Final = 3_600 * 1_000_000
YEAR_US: Final = 366 * 24 * _HOUR_US


@dataclass
class FaultContext:
    """The cluster that faults strike."""

    cluster: SimulatedCluster
    dice: Random
    kill_user: Callable[[], None]
    remove_broker: Callable[[int], None]
    fragile: tuple[int, ...] = ()
    """The brokers whose disks may be damaged: never a majority."""
    gateways: Sequence[SimulatedGateway] = ()
    is_over: bool = False

    def strike(self, name: str, text: str) -> None:
        self.cluster.world.story.strike(name, text)

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Do something later, unless everything has healed by then."""
        self.cluster.world.time.after_ms(delay_ms, lambda: None if self.is_over else action())

    def one(self) -> SimulatedBroker:
        """Any broker that belongs to the cluster."""
        return self.dice.choice(list(self.cluster.brokers.values()))

    def one_gateway(self) -> SimulatedGateway:
        return self.dice.choice(self.gateways)

    @property
    def hosts(self) -> list[str]:
        return [broker.machine.host for broker in self.cluster.brokers.values()]


Fault = Callable[[FaultContext], None]


def kill(context: FaultContext) -> None:
    """F1: a process is killed."""
    broker = context.one()
    context.strike("kill", f"broker {broker.node}")
    broker.crash(power=False, down_ms=context.dice.uniform(50, 4_000))


def kill_all(context: FaultContext) -> None:
    """F2: all processes are killed at once."""
    context.strike("kill all", "all brokers")
    for broker in context.cluster.brokers.values():
        broker.crash(power=False, down_ms=context.dice.uniform(50, 2_000))


def power_loss(context: FaultContext) -> None:
    """F3: a machine loses its power, and what it had not synced."""
    broker = context.one()
    context.strike("power loss", f"broker {broker.node}")
    broker.crash(power=True, down_ms=context.dice.uniform(50, 6_000))


def power_loss_of_all(context: FaultContext) -> None:
    """F4: all machines lose their power at once."""
    context.strike("power loss of all", "all brokers")
    for broker in context.cluster.brokers.values():
        broker.crash(power=True, down_ms=context.dice.uniform(50, 2_000))


def kill_in_disk_work(context: FaultContext) -> None:
    """A process dies in the middle of what it does to its disk."""
    broker = context.one()
    ahead = context.dice.randrange(_DISK_OPERATIONS_AHEAD)
    broker.machine.die_at(broker.machine.disk.operations + ahead)
    context.strike("kill in disk work", f"broker {broker.node}")


def failed_disk(context: FaultContext) -> None:
    """F17: an operation of a disk fails, and may have happened or not."""
    broker = context.one()
    faults = broker.machine.disk.faults
    faults.failure = StorageFailed
    faults.fail_operation = broker.machine.disk.operations + context.dice.randrange(
        _DISK_OPERATIONS_AHEAD
    )
    broker.has_failed_disk = True
    context.strike("failed disk", f"broker {broker.node}")
    # An operator starts a broker again that has lost its disk for a moment.
    context.after(context.dice.uniform(2_000, 8_000), partial(broker.restart, 100.0))


def full_disk(context: FaultContext) -> None:
    """F16: no space is left, and there is space again after a while."""
    broker = context.one()
    disk = broker.machine.disk
    used = sum(len(disk.content(path)) for path in disk.paths())
    disk.faults.capacity_bytes = used + context.dice.choice((0, 500, 5_000))

    def free() -> None:
        disk.faults.capacity_bytes = None

    context.after(context.dice.uniform(500, 6_000), free)
    context.strike("full disk", f"broker {broker.node}")


def read_only_disk(context: FaultContext) -> None:
    """F18: a disk takes no more writes for a while."""
    broker = context.one()
    broker.machine.disk.faults.read_only = broker.has_failed_disk = True

    def remount() -> None:
        broker.machine.disk.faults.read_only = False
        broker.restart(100.0)

    context.after(context.dice.uniform(500, 4_000), remount)
    context.strike("read-only disk", f"broker {broker.node}")


def slow_disk(context: FaultContext) -> None:
    """F19: everything takes long on one disk."""
    broker = context.one()
    state = broker.machine.state
    state.disk_ms = (context.dice.uniform(1, 100), context.dice.uniform(100, 2_000))

    def recover() -> None:
        state.disk_ms = (0.05, 2.0)

    context.after(context.dice.uniform(1_000, 8_000), recover)
    context.strike("slow disk", f"broker {broker.node}")


def pause(context: FaultContext) -> None:
    """F5: a process stands still for a while."""
    broker = context.one()
    duration_ms = context.dice.choice((200, 1_000, 3_000, 10_000)) * context.dice.random()
    broker.machine.pause_ms(duration_ms)
    context.strike("pause", f"broker {broker.node} for {duration_ms:.0f} ms")


def slow_machine(context: FaultContext) -> None:
    """F42: a machine gets to everything late."""
    broker = context.one()
    state = broker.machine.state
    state.lag_ms = context.dice.uniform(5, 150)

    def recover() -> None:
        state.lag_ms = 0.0

    context.after(context.dice.uniform(1_000, 6_000), recover)
    context.strike("slow machine", f"broker {broker.node}")


def odd_clock(context: FaultContext) -> None:
    """F20: a clock jumps, runs wrong or stops."""
    broker = context.one()
    clock, dice = broker.machine.clock, context.dice
    kind = dice.choice(("jumps", "jumps", "drifts", "stops"))
    if kind == "jumps":
        farthest_us = dice.choice((_HOUR_US, 25 * _HOUR_US, YEAR_US))
        clock.jump(dice.randint(-farthest_us, farthest_us))
    elif kind == "drifts":
        clock.drift(dice.uniform(*DRIFT))
    else:
        clock.stop()
    context.strike("odd clock", f"that of broker {broker.node} {kind}")


def rolling_restart(context: FaultContext) -> None:
    """F24: every broker is stopped and started, one after another."""
    context.strike("rolling restart", "one broker after another")
    for number, broker in enumerate(context.cluster.brokers.values()):
        context.after(number * context.dice.uniform(500, 3_000), partial(broker.restart, 200.0))


def restart(context: FaultContext) -> None:
    """A broker is stopped and started."""
    broker = context.one()
    context.strike("restart", f"broker {broker.node}")
    broker.restart(context.dice.uniform(50, 3_000))


def partition(context: FaultContext) -> None:
    """F6: some brokers cannot reach the others; clients can reach all of them."""
    hosts = context.hosts
    context.dice.shuffle(hosts)
    middle = context.dice.randint(1, max(1, len(hosts) // 2))
    links = {link for a in hosts[:middle] for b in hosts[middle:] for link in ((a, b), (b, a))}
    _cut(context, links, "partition")


def one_way_partition(context: FaultContext) -> None:
    """F7: some brokers are heard and do not hear, or hear and are not heard."""
    hosts = context.hosts
    some = context.dice.sample(hosts, context.dice.randint(1, max(1, len(hosts) // 2)))
    links = {(a, b) for a in some for b in hosts if b not in some}
    if context.dice.random() < 0.5:
        links = {(b, a) for a, b in links}
    _cut(context, links, "one-way partition")


def cut_links(context: FaultContext) -> None:
    """F8: any links are cut, also those to clients, each in one direction."""
    hosts = [*context.hosts, *(f"client{number}" for number in range(1, 12))]
    hosts += [gateway.machine.host for gateway in context.gateways]
    links = {(a, b) for a in hosts for b in hosts if a != b and context.dice.random() < 0.25}
    _cut(context, links, "cut links")


def _cut(context: FaultContext, links: set[Link], name: str) -> None:
    network = context.cluster.world.network
    network.cut(links)
    context.strike(name, f"{len(links)} links")
    context.after(context.dice.uniform(300, 8_000), lambda: network.cut(()))


def bad_weather(context: FaultContext) -> None:
    """F9: delays and losses."""
    dice, network = context.dice, context.cluster.world.network
    network.weather = Weather(
        delay_ms=(0.1, dice.choice((5.0, 50.0, 300.0))), loss=dice.choice((0.0, 0.02, 0.1))
    )
    context.strike("bad weather", str(network.weather))

    def clear() -> None:
        network.weather = Weather()

    context.after(dice.uniform(2_000, 8_000), clear)


def wrong_bits(context: FaultContext) -> None:
    """F12: bits are wrong on the way, and no checksum of the network notices."""
    network = context.cluster.world.network
    network.weather = Weather(flips=context.dice.choice((0.001, 0.01, 0.05)))
    context.strike("wrong bits", str(network.weather))

    def clear() -> None:
        network.weather = Weather()

    context.after(context.dice.uniform(500, 4_000), clear)


def damage(context: FaultContext) -> None:
    """F10, F11, F12: something on a disk is not what was written."""
    if not context.fragile:
        return
    broker = context.cluster.brokers[context.dice.choice(context.fragile)]
    disk = broker.machine.disk
    paths = disk.paths()
    if not paths:
        return
    path = context.dice.choice(paths)
    content = disk.content(path)
    act = context.dice.choice(("flips a bit of", "flips a bit of", "cuts", "loses"))
    if act == "loses":
        disk.lose_file(path)
    elif act == "cuts":
        disk.replace_content(path, content[: context.dice.randint(0, len(content))])
    else:
        # Behind the last mark of a log nothing tells damage from a torn write, nor could anything.
        size = content.rfind(MARK_PREFIX) if _is_last_segment(path, paths) else len(content)
        if size <= 0:
            return
        disk.flip_bit(path, context.dice.randrange(size * 8))
    context.strike("damage", f"broker {broker.node} {act} {path}")
    # A segment that is cut under a process which goes on writing gets its length back, and looks
    # torn after a power loss: the log promises nothing there.
    if (act == "cuts" and _is_last_segment(path, paths)) or context.dice.random() < 0.5:
        broker.crash(power=False, down_ms=context.dice.uniform(50, 2_000))


def _is_last_segment(path: str, paths: list[str]) -> bool:
    folder = path.rpartition("/")[0]
    segments = [each for each in paths if each.startswith(f"{folder}/") and each.endswith(".seg")]
    return path == max(segments, default="")


def empty_disk(context: FaultContext) -> None:
    """F22: a broker comes back with its old number and nothing else."""
    if not context.fragile:
        return
    broker = context.cluster.brokers[context.fragile[0]]
    context.strike("empty disk", f"broker {broker.node}")
    broker.machine.kill()
    broker.machine.disk.lose_all()
    broker.start()


def change_members(context: FaultContext) -> None:
    """F21: brokers come and go while the cluster serves."""
    added = context.cluster.added
    if added and context.dice.random() < 0.6:
        broker = context.dice.choice(added)
        context.strike("member", f"broker {broker.node} is to leave")
        context.remove_broker(broker.node)
    elif len(added) < _ADDED_MAX:
        # Not by one whose disk may be gone: it would not know of the cluster itself.
        sound = [n for n in context.cluster.founders if n not in context.fragile]
        join = context.cluster.brokers[context.dice.choice(sound)].settings.listen
        broker = context.cluster.add(join)
        context.strike("member", f"broker {broker.node} joins")


def kill_user(context: FaultContext) -> None:
    """F13: a client dies in the middle of something, and another takes its place."""
    context.strike("kill user", "")
    context.kill_user()


def kill_gateway(context: FaultContext) -> None:
    """A gateway is killed, or its machine loses its power."""
    gateway = context.one_gateway()
    power = context.dice.random() < 0.3
    context.strike("kill gateway", f"{gateway.name}{', without power' if power else ''}")
    gateway.crash(power=power, down_ms=context.dice.uniform(50, 4_000))


def restart_gateway(context: FaultContext) -> None:
    """A gateway is stopped and started."""
    gateway = context.one_gateway()
    context.strike("restart gateway", gateway.name)
    gateway.restart(context.dice.uniform(50, 3_000))


def pause_gateway(context: FaultContext) -> None:
    """A gateway stands still for a while."""
    gateway = context.one_gateway()
    duration_ms = context.dice.choice((200, 1_000, 3_000, 10_000)) * context.dice.random()
    gateway.machine.pause_ms(duration_ms)
    context.strike("pause gateway", f"{gateway.name} for {duration_ms:.0f} ms")


def cut_gateway(context: FaultContext) -> None:
    """A gateway reaches some brokers, and is reached by some, not by all."""
    host = context.one_gateway().machine.host
    ways = [way for broker in context.hosts for way in ((host, broker), (broker, host))]
    _cut(context, {way for way in ways if context.dice.random() < 0.5}, "cut gateway")


FAULTS: Final[dict[Fault, float]] = {
    kill: 5_000,
    kill_all: 15_000,
    power_loss: 6_000,
    power_loss_of_all: 15_000,
    kill_in_disk_work: 5_000,
    failed_disk: 9_000,
    full_disk: 8_000,
    read_only_disk: 12_000,
    slow_disk: 7_000,
    pause: 5_000,
    slow_machine: 7_000,
    odd_clock: 5_000,
    rolling_restart: 15_000,
    restart: 7_000,
    partition: 7_000,
    one_way_partition: 7_000,
    cut_links: 7_000,
    bad_weather: 7_000,
    wrong_bits: 7_000,
    kill_user: 5_000,
    damage: 5_000,
    change_members: 6_000,
    empty_disk: 25_000,
}
"""Each with its mean time between two strikes, in ms."""
LOSING_WHAT_IS_NOT_SYNCED: Final = frozenset(
    fault.__name__ for fault in (power_loss, power_loss_of_all, failed_disk, damage, empty_disk)
)
"""Messages acknowledged without fsync, or without another replica, do not outlive these."""
GATEWAY_FAULTS: Final[dict[Fault, float]] = {
    kill_gateway: 4_000,
    restart_gateway: 6_000,
    pause_gateway: 5_000,
    cut_gateway: 5_000,
}
"""The same of faults that only seeds with gateways have."""


class Nemesis:
    """Strikes with each chosen fault at its own random pace, until it is stopped.

    Each fault has dice of its own, so that leaving one out changes nothing in the others.
    """

    def __init__(self, context: FaultContext, is_kept: Callable[[str], bool]) -> None:
        self._context = context
        dice = context.dice
        share = dice.choice((0.15, 0.3, 0.6))
        drawn = {
            fault: (mean_ms * dice.choice((0.5, 1.0, 3.0)), dice.random() < share, dice.random())
            for fault, mean_ms in FAULTS.items()
        }
        if context.gateways:
            # Half of them at least: there are few.
            share = max(share, 0.5)
            drawn |= {
                fault: (mean_ms, dice.random() < share, dice.random())
                for fault, mean_ms in GATEWAY_FAULTS.items()
            }
        self.chosen = {
            fault: mean_ms
            for fault, (mean_ms, is_chosen, _) in drawn.items()
            if is_chosen and is_kept(fault.__name__)
        }
        self._dice = {fault: Random(drawn[fault][2]) for fault in self.chosen}
        context.cluster.world.story.tell(f"faults of this seed: {self.names}")
        for fault in self.chosen:
            self._plan(fault)

    @property
    def names(self) -> str:
        return ", ".join(fault.__name__.replace("_", " ") for fault in self.chosen) or "none"

    def _plan(self, fault: Fault) -> None:
        delay_ms = self._dice[fault].expovariate(1 / self.chosen[fault])
        self._context.cluster.world.time.after_ms(delay_ms, lambda: self._strike(fault))

    def _strike(self, fault: Fault) -> None:
        if not self._context.is_over:
            self._context.dice = self._dice[fault]
            fault(self._context)
            self._plan(fault)
