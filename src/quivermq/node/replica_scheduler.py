"""Runs all replicas of a broker: scheduled ones advance together, awake ones tick.

One pass: every scheduled replica takes its effects, all disk work is handed over, all mail leaves
as one packet a peer. A replica that sleeps costs nothing.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Set
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from quivermq.batches import MIB
from quivermq.cluster import node_of
from quivermq.log import Disk, LogSettings
from quivermq.node.clock import BrokerClock, Lapses
from quivermq.node.counters import Histogram
from quivermq.node.disk_thread import DiskThread
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.peers import PeerLinks
from quivermq.raft import Dice, Message, MessageKind
from quivermq.replica import Chunk, Consensus, Mail, Replica, ReplicaSettings
from quivermq.token_bucket import Throttle

if TYPE_CHECKING:
    from quivermq.tracing import ReplicationSpans

logger = logging.getLogger("quivermq.scheduler")

_PASSES_MAX: Final = 8
"""Before the loop gets to read sockets and to tick again."""
_SLICE_S: Final = 0.05
"""However many replicas are scheduled, the event loop goes on after so long."""
_HELD_BACK_BYTES_MAX: Final = 64 * MIB
"""Copies that wait until their bytes are due."""
_RATE_TICKS: Final = 10
"""Of which the rate of what is new is the mean, the last ones more than others."""
_HEIRS_A_TICK: Final = 100
"""An election takes each broker about a millisecond, and a few fsyncs. Of thousands at once most
would outlast their timeouts, and be held again."""
_GATHER_S: Final = 0.005
"""A lease and the acknowledgement of what takes less than this are one entry, and one fsync."""
_NOTICE_S: Final = 0.005
"""Followers learn so late at most what is committed: the next entries most often say it as well."""


class ReplicaScheduler:
    """Runs replicas: the `ReplicaHost` of each."""

    def __init__(
        self,
        *,
        disk: Disk,
        disk_thread: DiskThread,
        replica_settings: ReplicaSettings,
        log_settings: LogSettings,
        writes_inline: bool,
        copy_bytes_per_second: int,
        on_leadership: Callable[[HostedReplica], None],
        on_trouble: Callable[[HostedReplica, str, str], None] = lambda *_: None,
    ) -> None:
        self.clock = BrokerClock()
        self.disk = disk
        # Of the system: the numbers of leases are drawn with it too, and no client may guess those.
        self.dice: Dice = SystemRandom()
        # A broker that does not wait for the disk acknowledges what the power may take.
        self.replica_settings = replace(replica_settings, forgetful_disk=writes_inline)
        self.log_settings = log_settings
        self.writes_inline = writes_inline
        self.replicas: dict[bytes, HostedReplica] = {}
        self.links: PeerLinks | None = None
        self.spans: ReplicationSpans | None = None
        """None: replication is not traced."""
        self._disk_thread = disk_thread
        self._on_leadership = on_leadership
        self._on_trouble = on_trouble
        self._awake: dict[HostedReplica, None] = {}
        self._scheduled: list[HostedReplica] = []
        self._scheduled_later: dict[HostedReplica, None] = {}
        self._is_pass_due = False
        self._asked_in_turn: set[HostedReplica] = set()
        self._incarnations = 0
        self.silent_nodes: frozenset[int] = frozenset()
        """Other brokers that were not heard for an election timeout, as of the last tick."""
        self._lapses = Lapses()
        self._loop = asyncio.get_running_loop()
        self._copy_bytes_per_second = copy_bytes_per_second
        self._throttle = Throttle(copy_bytes_per_second, self._loop.time, self._loop.call_later)
        # By replica and member: the last entries of the appends that wait there. None may overtake
        # them.
        self._held_back: dict[tuple[HostedReplica, int], deque[int]] = {}
        # By replica and member: the last append that says what is committed, and no more.
        self._notices: dict[tuple[HostedReplica, int], Mail] = {}
        self._are_notices_due = False
        # What is new: bytes since the last tick, and by the second.
        self._new_bytes = 0
        self._new_bytes_per_second = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.lateness = Histogram()
        """How late ticks come: what everything else on this loop has to wait as well."""

    def add(self, hosted: HostedReplica) -> None:
        self._incarnations += 1
        hosted.incarnation = self._incarnations
        hosted.spans = self.spans
        self.replicas[hosted.id] = hosted
        self._awake[hosted] = None
        hosted.campaign()
        hosted.schedule()

    def remove(self, hosted: HostedReplica) -> None:
        """Stop a replica; its log stays."""
        hosted.close()
        self._awake.pop(hosted, None)
        if self.replicas.get(hosted.id) is hosted:
            del self.replicas[hosted.id]

    # What a replica needs.

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def steady_ms(self) -> int:
        """Of a clock that is never set."""
        return int(self._loop.time() * 1000)

    def lapses(self) -> int:
        """How often this broker stood still for as long as an election takes. Counted where it is
        asked, and with every tick: after a pause it is not known which of the two comes first."""
        settings = self.replica_settings
        return self._lapses.look(settings.tick_ms * settings.election_ticks / 1000)

    def schedule(self, hosted: HostedReplica) -> None:
        self._scheduled.append(hosted)
        self._awake[hosted] = None
        self._run_soon()

    def is_first_of_turn(self, hosted: HostedReplica) -> bool:
        """Whether it is asked for the first time in this turn of the event loop. What comes with
        others in one turn is better written together."""
        if not self._asked_in_turn:
            self._loop.call_soon(self._asked_in_turn.clear)
        elif hosted in self._asked_in_turn:
            return False
        self._asked_in_turn.add(hosted)
        return True

    def schedule_later(self, hosted: HostedReplica) -> None:
        """It has something that no request waits for: most likely there is more in a moment."""
        if not self._scheduled_later:
            self._loop.call_later(_GATHER_S, self._schedule_gathered)
        self._scheduled_later[hosted] = None

    def _schedule_gathered(self) -> None:
        replicas, self._scheduled_later = self._scheduled_later, {}
        for hosted in replicas:
            hosted.schedule()

    def _run_soon(self) -> None:
        if not self._is_pass_due:
            self._is_pass_due = True
            self._loop.call_soon(self._run)

    def post(self, hosted: HostedReplica, to: int, mail: Mail) -> None:
        size = _copied_bytes(mail)
        if self._may_wait(hosted, to, mail, size):
            self._hold_back(hosted, to, mail, size)
        elif self._is_notice(hosted, to, mail):
            self._post_notice_later(hosted, to, mail)
        elif self.links is not None:
            self._new_bytes += size
            if _append_of(mail) is not None:
                # It says also what a notice would.
                self._notices.pop((hosted, to), None)
                if (hosted, to) in self._held_back:
                    self._throttle.let_go((hosted, to))
            self.links.post(hosted.id, hosted.member, node_of(to), to, mail)

    def _is_notice(self, hosted: HostedReplica, to: int, mail: Mail) -> bool:
        """Whether it only says what is committed, and may do that a moment later. Of the catalog
        brokers learn at once."""
        append = _append_of(mail)
        is_empty = append is not None and not append.entries
        return is_empty and not hosted.is_metadata and (hosted, to) not in self._held_back

    def _post_notice_later(self, hosted: HostedReplica, to: int, mail: Mail) -> None:
        if not self._are_notices_due:
            self._are_notices_due = True
            self._loop.call_later(_NOTICE_S, self._post_notices)
        self._notices[hosted, to] = mail

    def _post_notices(self) -> None:
        self._are_notices_due = False
        notices, self._notices = self._notices, {}
        for (hosted, to), mail in notices.items():
            if self.links is not None and not hosted.is_closed:
                self.links.post(hosted.id, hosted.member, node_of(to), to, mail)
        self._run_soon()

    def _may_wait(self, hosted: HostedReplica, to: int, mail: Mail, size: int) -> bool:
        """Whether it is a copy of what enough others have, or an append behind one that waits."""
        follows = (hosted, to) in self._held_back and _append_of(mail) is not None
        if not (size or follows):
            return False
        replica = hosted.replica
        if to in replica.configuration.learners:
            return True
        away = _members_on(replica, self.silent_nodes)
        return (follows or _is_old(mail)) and replica.can_spare(to, away)

    def _hold_back(self, hosted: HostedReplica, to: int, mail: Mail, size: int) -> None:
        """Send it when its bytes are due, or never: consensus notices, and sends it again. An
        append that is empty, or repeats one in front of it, says nothing new."""
        if not size or self._throttle.waiting_bytes > _HELD_BACK_BYTES_MAX:
            return
        append = _append_of(mail)
        if append is not None:
            waiting = self._held_back.setdefault((hosted, to), deque())
            if waiting and append.index < waiting[-1]:
                return
            waiting.append(append.entries[-1].index)
        self._throttle.pass_on(size, lambda: self._post_later(hosted, to, mail), (hosted, to))

    def _post_later(self, hosted: HostedReplica, to: int, mail: Mail) -> None:
        if _append_of(mail) is not None:
            waiting = self._held_back[hosted, to]
            waiting.popleft()
            if not waiting:
                del self._held_back[hosted, to]
        if self.links is not None and not hosted.is_closed:
            self.links.post(hosted.id, hosted.member, node_of(to), to, mail)
            # No pass may be due: see that it leaves.
            self._run_soon()

    def write(
        self, hosted: HostedReplica, work: Callable[[], object], done: Callable[[object], None]
    ) -> None:
        self._disk_thread.submit(work, done, hosted.id)

    def run_aside(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Do long work in another thread, beside the disk thread."""
        self._disk_thread.submit_aside(work, done)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, action)

    def leadership_changed(self, hosted: HostedReplica) -> None:
        self._on_leadership(hosted)

    def tell(self, hosted: HostedReplica, kind: str, detail: str) -> None:
        self._on_trouble(hosted, kind, detail)

    def failed(self, hosted: HostedReplica) -> None:
        self._awake.pop(hosted, None)

    def deliver(self, partition_id: bytes, sender: int, to: int, mail: Mail) -> None:
        """Mail of a peer; what is for a member that we are not means nothing here."""
        hosted = self.replicas.get(partition_id)
        if hosted is not None and hosted.member == to:
            hosted.receive(sender, mail)

    def _run(self) -> None:
        self._is_pass_due = False
        until = time.perf_counter() + _SLICE_S
        for _ in range(_PASSES_MAX):
            if not self._scheduled:
                break
            if not self._run_pass(until):
                break
        if self.links is not None:
            self.links.flush()
        if self._scheduled:
            self._run_soon()

    def _run_pass(self, until: float) -> bool:
        """One pass; False if some have to wait, because the others on the loop have waited long."""
        scheduled, self._scheduled = self._scheduled, []
        for number, hosted in enumerate(scheduled, 1):
            try:
                hosted.advance()
            except Exception as error:
                hosted.give_up(error)
            if time.perf_counter() > until:
                self._scheduled = scheduled[number:] + self._scheduled
                return False
        return True

    # Time.

    def _set_copy_rate(self, interval_s: float) -> None:
        """Members that are behind get more than what is new, or they would never catch up."""
        new = self._new_bytes / interval_s
        self._new_bytes = 0
        self._new_bytes_per_second += (new - self._new_bytes_per_second) / _RATE_TICKS
        self._throttle.set_rate(max(self._copy_bytes_per_second, 2 * self._new_bytes_per_second))

    def start_ticking(self) -> None:
        self._due = self._loop.time()
        self._tick()

    def stop_ticking(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _tick(self) -> None:
        """One tick, however late it comes: a stalled broker must not blame its leaders."""
        self.lapses()
        interval = self.replica_settings.tick_ms / 1000
        now = self._loop.time()
        late = now - self._due
        self.lateness.observe(max(late, 0.0))
        if late > 10 * interval:
            logger.warning("the event loop was stalled for %.1f s", late)
        self._due = max(self._due + interval, now + interval / 2)
        self._ticker = self._loop.call_at(self._due, self._tick)
        self.clock.look()
        self._set_copy_rate(interval)
        if self.links is not None:
            self.links.tick()
            self.silent_nodes = self.links.silent_nodes
        silent = self.silent_nodes
        for hosted in list(self._awake):
            if hosted.replica.is_asleep and not hosted.is_scheduled:
                self._awake.pop(hosted, None)
            else:
                try:
                    hosted.tick(_members_on(hosted.replica, silent) if silent else ())
                except Exception as error:
                    hosted.give_up(error)

    @property
    def awake(self) -> int:
        """How many replicas tick."""
        return len(self._awake)

    def wake_all_of(self, node: int) -> None:
        """A broker is back, or was started again: wake the replicas that depend on it."""
        for hosted in self.replicas.values():
            replica = hosted.replica
            if replica.is_asleep and any(map(replica.depends_on, _members_on(replica, {node}))):
                hosted.wake()

    def wake_who_misses(self, node: int) -> None:
        """A broker is silent: wake the replicas that cannot do without it. Where it led, one of
        those left stands for election, before the timeouts of all come at the same time."""
        silent = {node} if self.links is None else self.links.silent_nodes | {node}
        heirs: dict[HostedReplica, int] = {}
        for hosted in self.replicas.values():
            replica = hosted.replica
            away = _members_on(replica, silent)
            if replica.leader in away:
                heirs[hosted] = _heir(hosted, away)
            elif replica.is_asleep and replica.misses(away):
                hosted.wake()
        for number, (hosted, heir) in enumerate(heirs.items()):
            hosted.succeed(heir, number // _HEIRS_A_TICK, len(heirs) // _HEIRS_A_TICK)


def _heir(hosted: HostedReplica, away: Collection[int]) -> int:
    """The member that stands first for the place of a leader that is away: a choice that all make
    alike, and that spreads the partitions of one broker over the others. Any would be right."""
    left = [member for member in hosted.replica.configuration.voters if member not in away]
    if hosted.preferred in left or not left:
        return hosted.preferred
    return left[hosted.id[-1] % len(left)]


def _members_on(replica: Replica, nodes: Set[int]) -> list[int]:
    return [member for member in replica.configuration.members if node_of(member) in nodes]


def _append_of(mail: Mail) -> Message | None:
    if isinstance(mail, Consensus) and mail.message.kind is MessageKind.APPEND:
        return mail.message
    return None


def _is_old(mail: Mail) -> bool:
    """Whether all of it was committed when it was made: nobody waits for it."""
    append = _append_of(mail)
    return append is None or append.entries[-1].index <= append.commit


def _copied_bytes(mail: Mail) -> int:
    """How much of the log, or of a checkpoint, is in it."""
    if isinstance(mail, Consensus):
        return sum(len(entry.data) for entry in mail.message.entries)
    return len(mail.data) if isinstance(mail, Chunk) else 0
