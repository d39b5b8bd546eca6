"""The faults of a simulation, and the nemesis that strikes with a random mix of them.

Disks are damaged only in fragile members, always a minority: what a majority forgot is lost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from quivermq.batches import MARK_PREFIX, Index
from quivermq.errors import StorageFailed
from quivermq.testing.simulated_disk import Killed
from tests.replica.simulation.host import FOLDER, Host
from tests.replica.simulation.network import Weather, bridge, deaf, mute, ring, split
from tests.replica.simulation.operator import Operator
from tests.replica.simulation.world import World


@dataclass(slots=True)
class FaultContext:
    """The world that faults strike, with a random generator of their own."""

    world: World
    dice: Random
    operator: Operator
    fragile: tuple[int, ...]
    """Members whose disks may be damaged: always a minority of the voters."""
    is_over: bool = False
    """Healing has begun: actions that faults planned for later do not happen."""

    def pick_one(self) -> Host | None:
        """Pick a running node, often the leader."""
        leader = self.world.leader
        if leader is not None and self.dice.random() < 0.5:
            return leader
        running = self.world.running
        return self.dice.choice(running) if running else None

    def pick_several(self) -> list[Host]:
        """Pick one node, a majority of them, or all."""
        hosts = [host for host in self.world.hosts.values() if not host.is_retired]
        self.dice.shuffle(hosts)
        size = self.dice.choice((1, len(hosts) // 2 + 1, len(hosts)))
        return hosts[:size]

    def between(self, low_ms: float, high_ms: float) -> float:
        """Draw a duration."""
        return self.dice.uniform(low_ms, high_ms)

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Plan an action, unless healing comes first."""
        self.world.time.after_ms(delay_ms, lambda: None if self.is_over else action())


HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
DISK_OPERATIONS_AHEAD = 14
"""A fault in the middle of disk work strikes within so many operations."""


def kill(context: FaultContext) -> None:
    """F1: a process dies, often the leader's."""
    host = context.pick_one()
    if host is not None:
        host.crash("killed", power=False, down_ms=context.between(50, 4_000))
        context.world.story.strike("kill", f"node {host.member}")


def kill_all(context: FaultContext) -> None:
    """F2: every process dies at once."""
    for host in context.world.running:
        host.crash("killed with all", power=False, down_ms=context.between(50, 2_000))
    context.world.story.strike("kill all", "all nodes")


def power_loss(context: FaultContext) -> None:
    """F3: one, a majority, or all machines lose power."""
    hosts = context.pick_several()
    for host in hosts:
        host.crash("loses power", power=True, down_ms=context.between(50, 3_000))
    context.world.story.strike("power loss", f"nodes {[host.member for host in hosts]}")


def power_loss_with_pauses(context: FaultContext) -> None:
    """F4: one machine loses power while others stand still."""
    host = context.pick_one()
    if host is None:
        return
    for other in context.world.running:
        if other is not host and context.dice.random() < 0.6:
            other.pause(context.between(500, 3_000))
    host.crash("loses power", power=True, down_ms=context.between(50, 1_000))
    context.world.story.strike("power loss with pauses", f"node {host.member}")


def kill_in_disk_work(context: FaultContext) -> None:
    """F1, F3: a process dies in the middle of a write, a sync, a rename."""
    host = context.pick_one()
    if host is not None:
        _fail_soon(context, host, Killed)
        context.world.story.strike("kill in disk work", f"node {host.member}")


def failed_disk(context: FaultContext) -> None:
    """F17: an operation of a disk fails, and may have happened or not."""
    host = context.pick_one()
    if host is not None:
        _fail_soon(context, host, StorageFailed)
        context.world.story.strike("failed disk", f"node {host.member}")


def _fail_soon(context: FaultContext, host: Host, failure: type[BaseException]) -> None:
    ahead = context.dice.randint(0, DISK_OPERATIONS_AHEAD)
    host.disk.faults.fail_operation = host.disk.operations + ahead
    host.disk.faults.failure = failure


def full_disk(context: FaultContext) -> None:
    """F16: no space left, and space again after a while."""
    host = context.pick_one()
    if host is None:
        return
    used = sum(len(host.disk.content(path)) for path in host.disk.paths())
    host.disk.faults.capacity_bytes = used + context.dice.choice((0, 500, 5_000))

    def free() -> None:
        host.disk.faults.capacity_bytes = None

    context.after(context.between(500, 6_000), free)
    context.world.story.strike("full disk", f"node {host.member}")


def read_only_disk(context: FaultContext) -> None:
    """F18: a disk takes no more writes for a while."""
    host = context.pick_one()
    if host is None:
        return
    host.disk.faults.read_only = True

    def remount() -> None:
        host.disk.faults.read_only = False

    context.after(context.between(500, 4_000), remount)
    context.world.story.strike("read-only disk", f"node {host.member}")


def slow_disk(context: FaultContext) -> None:
    """F19: one node's disk takes 0.2 to 5 seconds for everything."""
    host = context.pick_one()
    if host is None:
        return
    host.condition.disk_ms_min = context.between(1, 200)
    host.condition.disk_ms_max = context.between(200, 5_000)

    def recover() -> None:
        host.condition.disk_ms_min, host.condition.disk_ms_max = 0.1, 3.0

    context.after(context.between(1_000, 8_000), recover)
    context.world.story.strike("slow disk", f"node {host.member}")


def pause(context: FaultContext) -> None:
    """F5: a process is stopped for a while and goes on as if nothing had happened."""
    host = context.pick_one()
    if host is not None:
        duration_ms = context.between(300, 12_000)
        host.pause(duration_ms)
        context.world.story.strike("pause", f"node {host.member} for {duration_ms:.0f} ms")


def slow_node(context: FaultContext) -> None:
    """F42: a node gets to everything late."""
    host = context.pick_one()
    if host is None:
        return
    host.condition.lag_ms = context.between(20, 600)

    def recover() -> None:
        host.condition.lag_ms = 0.0

    context.after(context.between(1_000, 6_000), recover)
    context.world.story.strike("slow node", f"node {host.member}")


def odd_clock(context: FaultContext) -> None:
    """F20: a clock jumps by up to an hour, a day or a year, or runs wrong from now on."""
    host = context.pick_one()
    if host is None:
        return
    if context.dice.random() < 0.6:
        farthest_ms = context.dice.choice((HOUR_MS, 25 * HOUR_MS, YEAR_MS))
        by_ms = context.dice.randint(-farthest_ms, farthest_ms)
        host.clock.jump(by_ms)
        context.world.story.strike("odd clock", f"node {host.member} jumps by {by_ms} ms")
    else:
        rate = context.dice.uniform(0.85, 1.15)
        host.clock.drift(rate)
        context.world.story.strike("odd clock", f"node {host.member} runs at {rate:.2f}")


def rolling_restart(context: FaultContext) -> None:
    """F24: every node is restarted, one after another."""
    for number, host in enumerate(context.world.running):
        restart = partial(host.crash, "restarted", power=False, down_ms=200)
        context.after(number * context.between(300, 1_500), restart)
    context.world.story.strike("rolling restart", "one node after another")


def partition(context: FaultContext) -> None:
    """F6: a minority is cut off, or the cluster falls into a bridge or a ring."""
    nodes = context.world.nodes
    if len(nodes) == 1:
        return
    context.dice.shuffle(nodes)
    shape = context.dice.choice(("minority", "leader", "bridge", "ring"))
    leader = context.world.leader
    if shape == "bridge":
        links = bridge(nodes)
    elif shape == "ring":
        links = ring(nodes)
    elif shape == "leader" and leader is not None:
        links = split([leader.member], [node for node in nodes if node != leader.member])
    else:
        size = context.dice.randint(1, len(nodes) // 2)
        links = split(nodes[:size], nodes[size:])
    _cut_for_a_while(context, links, "partition", f"{shape} {nodes}")


def one_way_partition(context: FaultContext) -> None:
    """F7: some nodes are heard and do not hear, or hear and are not heard."""
    nodes = context.world.nodes
    context.dice.shuffle(nodes)
    some = nodes[: context.dice.randint(1, max(1, len(nodes) // 2))]
    leader = context.world.leader
    if leader is not None and context.dice.random() < 0.5:
        some = [leader.member]
    shape = context.dice.choice((mute, deaf))
    links = shape(nodes, some)
    _cut_for_a_while(context, links, "one-way partition", f"{shape.__name__} {some}")


def _cut_for_a_while(
    context: FaultContext, links: set[tuple[int, int]], name: str, text: str
) -> None:
    network = context.world.network
    network.cut(links)
    context.world.story.strike(name, text)

    def join() -> None:
        network.cut(())
        context.world.story.tell(f"{name} ends")

    context.after(context.between(500, 8_000), join)


def clog(context: FaultContext) -> None:
    """F8: links clog one by one, and are restored in any order."""
    network, nodes = context.world.network, context.world.nodes
    links = [(a, b) for a in nodes for b in nodes if a != b]
    context.dice.shuffle(links)
    chosen = links[: context.dice.randint(0, len(links))]
    for link in chosen:
        context.after(context.between(0, 1_500), partial(network.clog, link))
        context.after(context.between(2_000, 7_000), partial(network.restore, link))
    context.world.story.strike("clog", f"{len(chosen)} links")


def bad_weather(context: FaultContext) -> None:
    """F9: loss, jitter, repetition and reordering, for a while."""
    dice = context.dice
    weather = Weather(
        delay_ms_max=dice.choice((5.0, 50.0, 400.0)),
        loss=dice.choice((0.0, 0.02, 0.1, 0.3)),
        repetition=dice.choice((0.0, 0.05, 0.3)),
        is_ordered=dice.random() < 0.3,
    )
    context.world.network.weather = weather
    context.world.story.strike("bad weather", str(weather))

    def clear() -> None:
        context.world.network.weather = Weather()

    context.after(context.between(2_000, 10_000), clear)


DOWN_MS_MAX = 2_000


def damage(context: FaultContext) -> None:
    """F10, F11, F12: something on the disk of a fragile member is not what was written."""
    host = _fragile_host(context)
    if host is None:
        return
    paths = host.disk.paths()
    path = context.dice.choice(paths)
    act = context.dice.choice((flip_bit, flip_bit, flip_bit, cut_short, lose_file))
    if act(context, host, path):
        name = path.rpartition("/")[2]
        context.world.story.strike("damage", f"{act.__name__} {name} of node {host.member}")
        # An active segment that is cut under a process which goes on writing gets its length back,
        # and looks torn after a power loss: the log promises nothing there.
        is_cut = act is cut_short and _is_last_segment(path, paths)
        if is_cut or context.dice.random() < 0.5:
            host.crash("killed", power=False, down_ms=context.between(50, DOWN_MS_MAX))


def empty_disk(context: FaultContext) -> None:
    """F22: a node comes back with its old id and nothing else."""
    host = _fragile_host(context)
    if host is None or context.dice.random() < 0.5:
        return
    for path in host.disk.paths():
        host.disk.lose_file(path)
    host.crash("killed", power=False, down_ms=context.between(50, DOWN_MS_MAX))
    context.world.story.strike("empty disk", f"node {host.member}")


def _fragile_host(context: FaultContext) -> Host | None:
    hosts = [context.world.hosts[member] for member in context.fragile]
    sound = [host for host in hosts if host.disk.paths() and not host.is_retired]
    return context.dice.choice(sound) if sound else None


def _is_last_segment(path: str, paths: list[str]) -> bool:
    return path == max((path for path in paths if path.endswith(".seg")), default="")


Damage = Callable[[FaultContext, Host, str], bool]


def flip_bit(context: FaultContext, host: Host, path: str) -> bool:
    """One bit is wrong; False if there was none to flip."""
    content = host.disk.content(path)
    size = len(content)
    # Behind the last mark nothing tells damage from a torn write, nor could anything.
    if path.startswith(FOLDER) and _is_last_segment(path, host.disk.paths()):
        size = max(0, content.rfind(MARK_PREFIX))
    if not size:
        return False
    host.disk.flip_bit(path, context.dice.randrange(size * 8))
    return True


def cut_short(context: FaultContext, host: Host, path: str) -> bool:
    """The end of a file is gone."""
    content = host.disk.content(path)
    host.disk.replace_content(path, content[: context.dice.randint(0, len(content))])
    return True


def lose_file(_: FaultContext, host: Host, path: str) -> bool:
    """A file is gone."""
    host.disk.lose_file(path)
    return True


Fault = Callable[[FaultContext], None]


def change_membership(context: FaultContext) -> None:
    """F21: members come and go while the cluster serves."""
    if context.dice.random() < 0.3:
        context.operator.retire_removed()
    context.operator.change_something()
    context.world.story.strike("membership", f"members are {context.world.auditor.members}")


def retention(context: FaultContext) -> None:
    """F25: retention drops the front of the log, so that a lagging node needs a checkpoint."""
    for host in context.world.running:
        if context.dice.random() < 0.7:
            kept = context.dice.choice((0, 5, 50))
            host.drop_before(Index(max(1, host.replica.applied_index + 1 - kept)))
    context.world.story.strike("retention", "old segments go")


def transfer_leader(context: FaultContext) -> None:
    """Leadership is handed over, to a member that may or may not keep up."""
    leader = context.world.leader
    if leader is not None:
        target = context.dice.choice(context.world.auditor.members)
        leader.transfer_leader(target)
        context.world.story.strike("transfer", f"from node {leader.member} to {target}")


def dead_letters_unavailable(context: FaultContext) -> None:
    """F31: the dead-letter topic cannot be written for a while."""
    topic = context.world.environment.dead_letters
    topic.is_available = False

    def return_() -> None:
        topic.is_available = True

    context.after(context.between(500, 8_000), return_)
    context.world.story.strike("no dead letters", "their topic is unavailable")


def lull(context: FaultContext) -> None:
    """No fault, but clients are idle, so that replicas fall asleep."""
    duration_ms = context.between(500, 6_000)
    context.world.quiet_until_ms = context.world.time.now_ms + round(duration_ms)
    context.world.story.strike("lull", f"for {duration_ms:.0f} ms")


FAULTS: Final[dict[Fault, float]] = {
    kill: 3_000,
    kill_all: 12_000,
    power_loss: 5_000,
    power_loss_with_pauses: 6_000,
    kill_in_disk_work: 3_000,
    failed_disk: 5_000,
    full_disk: 6_000,
    read_only_disk: 10_000,
    slow_disk: 6_000,
    pause: 6_000,
    slow_node: 6_000,
    odd_clock: 4_000,
    rolling_restart: 12_000,
    partition: 5_000,
    one_way_partition: 6_000,
    clog: 6_000,
    bad_weather: 6_000,
    damage: 5_000,
    empty_disk: 15_000,
    change_membership: 3_000,
    retention: 2_500,
    transfer_leader: 3_000,
    dead_letters_unavailable: 6_000,
    lull: 6_000,
}
"""Each fault with its mean time between two strikes, in ms."""


class Nemesis:
    """Strikes with each chosen fault at its own random pace, until it is stopped."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        dice = context.dice
        share = dice.choice((0.15, 0.3, 0.6))
        self.chosen = {
            fault: mean_ms * dice.choice((0.5, 1.0, 3.0))
            for fault, mean_ms in FAULTS.items()
            if dice.random() < share
        }
        context.world.story.tell(f"faults of this seed: {self.names}")
        for fault in self.chosen:
            self._plan(fault)

    @property
    def names(self) -> str:
        return ", ".join(fault.__name__.replace("_", " ") for fault in self.chosen) or "none"

    def stop(self) -> None:
        self._context.is_over = True

    def _plan(self, fault: Fault) -> None:
        delay_ms = self._context.dice.expovariate(1 / self.chosen[fault])
        self._context.world.time.after_ms(delay_ms, lambda: self._strike(fault))

    def _strike(self, fault: Fault) -> None:
        if not self._context.is_over:
            fault(self._context)
            self._plan(fault)
