"""Three replicas of a partition in one process; the leader dies, and nothing is lost.

A replica does no I/O itself: it yields messages to send and entries to store. Here a plain loop
does both at once. The broker does the same with sockets and a disk thread.
"""

import itertools
import tempfile
from pathlib import Path
from random import Random

from quivermq.batches import FrameKind, Origin, decode_messages, encode_batch
from quivermq.log import Log, RealDisk
from quivermq.replica import (
    Answer,
    Persist,
    Produced,
    Replica,
    ReplicaSettings,
    Result,
    SaveCheckpoint,
    Send,
    carry_out,
    found_log,
)

MEMBERS = (1, 2, 3)
SETTINGS = ReplicaSettings()


class Cluster:
    """Replicas that send each other messages, until one is killed."""

    def __init__(self, root: Path) -> None:
        self.logs: dict[int, Log] = {}
        self.live: dict[int, Replica] = {}
        self.answers: dict[int, Result] = {}
        self.now_ms = 0
        for member in MEMBERS:
            log = found_log(
                RealDisk(root / str(member)), "log/orders/0", b"%016d" % member, MEMBERS
            )
            self.logs[member] = log
            self.live[member] = Replica(member, log, SETTINGS, Random(member))

    def settle(self) -> None:
        """Carry out the effects of all replicas, until there are none."""
        busy = True
        while busy:
            busy = False
            for member, replica in list(self.live.items()):
                for effect in replica.take_effects():
                    busy = True
                    if isinstance(effect, Send) and effect.to in self.live:
                        self.live[effect.to].receive(member, effect.mail)
                    elif isinstance(effect, Persist):
                        carry_out(self.logs[member], effect)
                        replica.persisted(effect.number)
                    elif isinstance(effect, SaveCheckpoint):
                        carry_out(self.logs[member], effect)
                    elif isinstance(effect, Answer):
                        self.answers[effect.token] = effect.result

    def leader(self) -> Replica:
        while True:
            for replica in self.live.values():
                if replica.is_serving:
                    return replica
            self.now_ms += SETTINGS.tick_ms
            for replica in self.live.values():
                replica.tick(self.now_ms)
            self.settle()


def main(root: Path) -> None:
    cluster = Cluster(root)
    tokens = itertools.count(1)
    for sequence in range(6):
        leader = cluster.leader()
        if sequence == 3:
            print(f"replica {leader.member} leads in term {leader.term}, and dies")
            del cluster.live[leader.member]
            leader = cluster.leader()
            print(f"replica {leader.member} leads in term {leader.term}")
        batch = encode_batch(
            [b"order %d" % sequence], origin=Origin(producer_id=7, sequence=sequence)
        )
        token = next(tokens)
        leader.produce(token, batch, cluster.now_ms)
        cluster.settle()
        stored = cluster.answers[token]
        assert isinstance(stored, Produced)
        print(f"order {sequence} is stored at offset {stored.base_offset}")
    log = cluster.logs[cluster.leader().member]
    frames = [f for f in log.frames(log.first_index) if f.header.kind == FrameKind.DATA]
    print("the log holds", [m.value.decode() for f in frames for m in decode_messages(f)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
