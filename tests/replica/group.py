"""A few replicas in one thread, without delays: for tests of what one of them does.

Everything that is sent arrives at once unless a link is cut, and every write is carried out at
once unless a disk is held.
"""

from collections import deque
from random import Random

from quivermq.batches import Frame, Origin, encode_batch
from quivermq.errors import Corrupt
from quivermq.log import Log, LogSettings
from quivermq.replica import (
    Answer,
    Effect,
    Persist,
    Repair,
    Replica,
    ReplicaSettings,
    Result,
    SaveCheckpoint,
    Send,
    blank_log,
    carry_out,
    found_log,
)
from quivermq.testing.simulated_disk import SimulatedDisk

FOLDER = "log/orders/0"
SMALL = LogSettings(segment_bytes=4096, allocation_bytes_min=512, allocation_bytes_step=4096)


class Node:
    """A replica with its disk."""

    def __init__(self, group: "Group", member: int, *, founder: bool = True) -> None:
        self.group = group
        self.member = member
        self.disk = SimulatedDisk(Random(member))
        log_id = b"%016d" % member
        if founder:
            self.log = found_log(self.disk, FOLDER, log_id, group.founders, SMALL)
        else:
            self.log = blank_log(self.disk, FOLDER, log_id, SMALL)
        self.is_up = True
        self.is_held = False
        """Whether disk work waits."""
        self.work: deque[Effect] = deque()
        self.answers: dict[int, Result] = {}
        self.replica = self._new_replica()

    def _new_replica(self) -> Replica:
        dice = Random(self.member * 1000 + self.group.now_ms)
        return Replica(self.member, self.log, self.group.settings, dice)

    def restart(self, *, power: bool = True, is_noticed: bool = True) -> None:
        """Lose everything that is not on disk, and start again."""
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()
        self.work.clear()
        self.log = Log.open(self.disk, FOLDER, SMALL)
        self.is_up = True
        self.replica = self._new_replica()
        if is_noticed:
            self.group.wake_dependents_of(self.member)

    def meet_damage(self) -> None:
        """A read found damage, which the log knows of from now on."""
        self.work.clear()
        self.replica = self._new_replica()

    def pump(self) -> bool:
        """Do what the replica asks for; True if there was anything."""
        try:
            effects = self.replica.take_effects()
        except Corrupt:
            self.meet_damage()
            return True
        for effect in effects:
            if isinstance(effect, Send):
                self.group.send(self.member, effect)
            elif isinstance(effect, Answer):
                assert effect.token not in self.answers, "a token was answered twice"
                self.answers[effect.token] = effect.result
            elif isinstance(effect, Persist | SaveCheckpoint | Repair):
                self.work.append(effect)
        worked = False
        while self.work and not self.is_held:
            self._work_once()
            worked = True
        return bool(effects) or worked

    def _work_once(self) -> None:
        effect = self.work.popleft()
        assert isinstance(effect, Persist | SaveCheckpoint | Repair)
        carry_out(self.log, effect)
        if isinstance(effect, Persist):
            self.replica.persisted(effect.number)
        elif isinstance(effect, Repair):
            self.replica.repaired()


class Group:
    """Replicas of one partition that talk to each other."""

    def __init__(self, members: int = 3, settings: ReplicaSettings | None = None) -> None:
        self.settings = settings or ReplicaSettings()
        self.now_ms = 1_000_000
        self.founders = tuple(range(1, members + 1))
        self.cut: set[tuple[int, int]] = set()
        self.mail: deque[tuple[int, Send]] = deque()
        self.nodes = {member: Node(self, member) for member in self.founders}
        self._away: dict[int, set[int]] = {}
        self._token = 0

    def __getitem__(self, member: int) -> Node:
        return self.nodes[member]

    def add(self, member: int) -> Node:
        """A node that is not a member yet, with a blank log."""
        self.nodes[member] = Node(self, member, founder=False)
        return self.nodes[member]

    def send(self, sender: int, effect: Send) -> None:
        self.mail.append((sender, effect))

    def isolate(self, member: int) -> None:
        for other in self.nodes:
            self.cut |= {(member, other), (other, member)}

    def heal(self) -> None:
        self.cut.clear()

    def settle(self) -> None:
        """Let everything happen that follows without time passing."""
        busy = True
        while busy:
            busy = False
            for node in self.nodes.values():
                busy |= node.is_up and node.pump()
            while self.mail:
                sender, effect = self.mail.popleft()
                node = self.nodes.get(effect.to)
                if node is not None and node.is_up and (sender, effect.to) not in self.cut:
                    try:
                        node.replica.receive(sender, effect.mail)
                    except Corrupt:
                        node.meet_damage()
                busy = True

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_ms += self.settings.tick_ms
            self._watch_nodes()
            for node in self.nodes.values():
                if node.is_up and not node.replica.is_asleep:
                    node.replica.tick(self.now_ms, self._away[node.member])
            self.settle()

    def _watch_nodes(self) -> None:
        """What a node does for its sleepers: here a peer that is gone is missed at once."""
        down = {node.member for node in self.nodes.values() if not node.is_up}
        for to, node in self.nodes.items():
            away = down | {sender for sender, other in self.cut if other == to}
            back = self._away.get(to, set()) - away
            self._away[to] = away
            if node.replica.misses(away) or any(map(node.replica.depends_on, back)):
                node.replica.wake()

    def wake_dependents_of(self, member: int) -> None:
        for node in self.nodes.values():
            if node.is_up and node.replica.depends_on(member):
                node.replica.wake()

    def leader(self) -> Node:
        """The node that serves, once there is one."""
        for _ in range(200):
            serving = [n for n in self.nodes.values() if n.is_up and n.replica.is_serving]
            if serving:
                return max(serving, key=lambda node: node.replica.term)
            self.tick()
        raise AssertionError("nobody leads after 200 ticks")

    def token(self) -> int:
        self._token += 1
        return self._token

    def produce(self, node: Node, frame: Frame | None = None) -> int:
        """Ask a node to store a batch; returns the token."""
        token = self.token()
        node.replica.produce(token, frame or batch(b"message %d" % token), self.now_ms)
        self.settle()
        return token


def batch(*values: bytes, producer: int = 0, epoch: int = 0, sequence: int = 0) -> Frame:
    """A batch as a client sends it."""
    origin = Origin(producer_id=producer, producer_epoch=epoch, sequence=sequence)
    return encode_batch(list(values), origin=origin)
