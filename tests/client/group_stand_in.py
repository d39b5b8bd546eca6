"""A stand-in that leases messages: enough of a broker to see what a client makes of its answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quivermq.batches import Frame
from quivermq.errors import NotLeader
from quivermq.wire import proto
from tests.client.stand_in import StandIn

# A stand-in serves one connection at a time: a request that waits holds up those behind it.
WAIT_SECONDS_MAX = 0.02


@dataclass
class Lot:
    """What one group has of one partition."""

    done: set[int] = field(default_factory=set)
    dead: dict[int, str] = field(default_factory=dict)
    leases: dict[int, set[int]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)

    @property
    def taken(self) -> set[int]:
        return self.done | set(self.dead) | {each for held in self.leases.values() for each in held}


class GroupStandIn(StandIn):
    """Leases what was produced to it, one batch of each partition at a time."""

    def __init__(self, **options: object) -> None:
        self.lots: dict[tuple[int, str], Lot] = {}
        self.polls: list[proto.Poll] = []
        self.settles: list[proto.Settle] = []
        self.releases: list[proto.ReleaseConsumer] = []
        self._lease = 0
        super().__init__(**options)  # type: ignore[arg-type]

    def lot(self, partition: int = 0, group: str = "g") -> Lot:
        return self.lots.setdefault((partition, group), Lot())

    def lose_leases(self) -> None:
        """All of them expire, and another consumer takes the messages."""
        with self._heard:
            for lot in self.lots.values():
                taken = set().union(*lot.leases.values())
                lot.leases = {-1: taken}

    def _led(self, request: proto.Request, partitions: Sequence[int]) -> list[int]:
        """Those that are led here; refused only if there are none."""
        led = [partition for partition in partitions if self._leader(partition) == self.node]
        if not led:
            self._check_leader(request, partitions)
        return led

    def _check_leader(self, request: proto.Request, partitions: Sequence[int]) -> None:
        for partition in partitions:
            leader = self._leader(partition)
            if leader != self.node:
                address = self.addresses.get(leader, "")
                raise NotLeader("another broker leads", leader=leader, leader_address=address)

    def _ready(self, partition: int, group: str, limit: int) -> list[int]:
        taken = self.lot(partition, group).taken
        end = self.logs["t", partition].end
        return [offset for offset in range(end) if offset not in taken][:limit]

    def _on_poll(
        self, request: proto.Request, frames: list[Frame]
    ) -> tuple[proto.Response, Sequence[Frame]]:
        poll = request.poll
        self.polls.append(poll)
        led = self._led(request, poll.partitions)
        self._heard.wait_for(
            lambda: any(self._ready(each, poll.group, 1) for each in led),
            min(poll.wait_ms / 1000, WAIT_SECONDS_MAX),
        )
        response = proto.Response()
        response.polled.elsewhere.extend(each for each in poll.partitions if each not in led)
        response.polled.SetInParent()
        sent: list[Frame] = []
        left = poll.messages_max
        for partition in led:
            offsets = self._ready(partition, poll.group, left)
            if offsets:
                left -= len(offsets)
                sent += self._leased(response.polled.leased.add(), poll, partition, offsets)
            if not left:
                break
        return response, sent

    def _leased(
        self, leased: proto.Leased, poll: proto.Poll, partition: int, offsets: list[int]
    ) -> list[Frame]:
        lot = self.lot(partition, poll.group)
        leased.partition = partition
        if poll.auto_ack:
            lot.done.update(offsets)
        else:
            self._lease += 1
            leased.lease = self._lease
            lot.leases[self._lease] = set(offsets)
            lot.owners[self._lease] = poll.consumer
        for offset in offsets:
            leased.pieces.add(start=offset, count=1, delivery=1 + lot.failures.get(offset, 0))
        found = [
            frame
            for frame in self.logs["t", partition].frames
            if any(frame.header.base_offset <= each < frame.header.next_offset for each in offsets)
        ]
        leased.frames = len(found)
        return found

    def _on_await_ready(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        ask = request.await_ready
        led = self._led(request, ask.partitions)
        self._heard.wait_for(
            lambda: any(self._ready(each, ask.group, 1) for each in led),
            min(ask.wait_ms / 1000, WAIT_SECONDS_MAX),
        )
        ready = [each for each in led if self._ready(each, ask.group, 1)]
        elsewhere = [each for each in ask.partitions if each not in led]
        return proto.Response(ready=proto.Ready(partitions=ready, elsewhere=elsewhere))

    def _on_settle(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        settle = request.settle
        self.settles.append(settle)
        self._check_leader(request, [settlement.partition for settlement in settle.settlements])
        response = proto.Response()
        response.settled.SetInParent()
        for number, settlement in enumerate(settle.settlements):
            lost = self._ruled(self.lot(settlement.partition, settle.group), settlement)
            if lost is not None:
                response.settled.lost.add(
                    settlement=number,
                    intervals=[proto.Interval(start=each, end=each + 1) for each in lost],
                )
        return response

    def _ruled(self, lot: Lot, settlement: proto.Settlement) -> list[int] | None:
        held = lot.leases.get(settlement.lease, set())
        named = [each for span in settlement.intervals for each in range(span.start, span.end)]
        offsets = named or sorted(held)
        lost = [each for each in offsets if each not in held]
        kept = set(offsets) - set(lost)
        if settlement.outcome == proto.EXTEND:
            return None if held else []
        held -= kept
        if settlement.outcome == proto.ACK:
            lot.done |= kept
        elif settlement.outcome == proto.REJECT:
            lot.dead.update(dict.fromkeys(kept, settlement.reason))
        elif settlement.outcome == proto.NACK:
            for each in kept:
                lot.failures[each] = lot.failures.get(each, 0) + 1
        self._heard.notify_all()
        return lost or None

    def _on_release_consumer(self, request: proto.Request, frames: list[Frame]) -> proto.Response:
        release = request.release_consumer
        self.releases.append(release)
        for partition in release.partitions:
            lot = self.lot(partition, release.group)
            for lease, owner in lot.owners.items():
                if owner == release.consumer:
                    lot.leases.pop(lease, None)
        self._heard.notify_all()
        return proto.Response(done=proto.Done())
