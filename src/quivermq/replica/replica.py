"""One replica of one partition, composed without I/O: inputs in, effects out.

    replica.tick(now_ms) · receive(sender, mail) · produce(token, frame, now_ms) · persisted(number)
    for effect in replica.take_effects(): carry it out

While `is_asleep` there is no need to tick; every other input wakes. The broker of a sleeper watches
its peers instead, and calls `wake` when one that matters falls silent or begins a new life.

Nothing here waits, so nothing can change between a check and its act. Every request gets exactly
one answer. `Corrupt` out of any method, or out of `carry_out`, means that the log turned out to be
damaged: discard the replica and make a new one over the same `Log`, which then mends it. Not over
one that is opened anew: it takes sealed segments by their footers, and would not know.
`UnsupportedFormat` means that an entry or a checkpoint is of a later release: stop, until that
release is started. What is applied may be read meanwhile.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from quivermq.batches import Frame, Index
from quivermq.errors import Corrupt, NotLeader
from quivermq.log import Checkpoint, Edge, Log
from quivermq.queue import Catalog, Groups, Json, LeaseManager, ProducerTable, TopicSettings
from quivermq.raft import NOBODY, Configuration, Dice, MembershipChange, Role, Status
from quivermq.raft import MessageKind as Said
from quivermq.replica.effects import (
    Answer,
    Chunk,
    ChunkRequest,
    Consensus,
    Effect,
    EntriesReply,
    EntriesRequest,
    Mail,
    Offer,
    Send,
    Sleep,
    Token,
    TransferEnded,
)
from quivermq.replica.log_repair import LogRepair, is_past
from quivermq.replica.member import Member
from quivermq.replica.settings import ReplicaSettings
from quivermq.replica.sleep import Sleeper
from quivermq.replica.state import ReplicaState
from quivermq.replica.storage import newest_state
from quivermq.replica.transfer import Receiving, Sending

T = TypeVar("T")

_CANDIDACY: Final = frozenset({Said.VOTE, Said.PREVOTE})


class Replica:
    """A partition's replica on one node: a live member, or one that mends its log."""

    def __init__(
        self,
        member: int,
        log: Log,
        settings: ReplicaSettings,
        dice: Dice,
        state: ReplicaState | None = None,
        *,
        must_mend: bool = False,
    ) -> None:
        """`state`: what `newest_state(log)` gave, if that was done elsewhere: it may take long.
        `must_mend`: others need what is damaged, so it does not suffice to do without."""
        self.member = member
        self._log = log
        self._settings = settings
        self._dice = dice
        self._effects: list[Effect] = []
        self._sending = Sending(log, settings)
        self._receiving: Receiving | None = None
        self._live: Member | None = None
        self._sleeper: Sleeper | None = None
        self._repair: LogRepair | None = None
        if log.damage and (must_mend or not is_past(member, log)):
            self._repair = LogRepair(member, log, settings)
        else:
            self._start(state)

    def _start(self, state: ReplicaState | None = None) -> None:
        self._repair = None
        state = newest_state(self._log) if state is None else state
        self._live = Member(
            self.member, self._log, state, self._settings, self._dice, self._effects
        )
        self._sleeper = Sleeper(self._live.core, self._settings)

    def take_effects(self) -> list[Effect]:
        """All that follows from the inputs since the last call, in order."""
        if self._live is not None:
            self._live.advance()
        taken = self._effects.copy()
        self._effects.clear()
        if Send in map(type, taken):
            offered = [self._with_offer(effect) for effect in taken]
            return [effect for effect in offered if effect is not None]
        return taken

    @property
    def has_news(self) -> bool:
        """Whether effects may follow from the inputs so far; most ticks have none."""
        return bool(self._effects) or (self._live is not None and self._live.has_news)

    @property
    def is_behind(self) -> bool:
        """Whether effects should be taken again soon, since more could be applied."""
        return self._live is not None and self._live.is_behind

    @property
    def is_repairing(self) -> bool:
        """Whether the log is damaged, so that this replica neither votes nor leads."""
        return self._repair is not None

    @property
    def damage_text(self) -> str:
        """The damage of the log, for people; "" if there is none."""
        return self._repair.reason if self._repair else ""

    @property
    def configuration_on_disk(self) -> tuple[int, ...]:
        """The members of the partition, also while the log is mended: as of its newest checkpoint,
        and those that wrote since."""
        return self._repair.members if self._repair else self.configuration.members

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be known what the log lost: the replica has to be replaced."""
        return self._repair is not None and not self._repair.can_end

    @property
    def mends_alone(self) -> bool:
        """Whether the log is damaged, and no peer is known that could help."""
        return self._repair is not None and self._repair.is_alone

    @property
    def is_alone(self) -> bool:
        """Whether this replica is the only one, so that no other knows more than it does."""
        return self.configuration.members == (self.member,)

    @property
    def is_asleep(self) -> bool:
        """Whether ticks do nothing: the partition is idle, and every member has everything."""
        return self._sleeper is not None and self._sleeper.is_asleep

    @property
    def leader(self) -> int:
        """The leader, as far as this replica knows; 0 if it does not."""
        return self._live.core.replica.leader if self._live else NOBODY

    @property
    def role(self) -> Role | None:
        """Its role in Raft; None while this replica mends its log."""
        return self._live.core.replica.role if self._live else None

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_serving(self) -> bool:
        """Whether this replica leads and takes proposals."""
        return self._live is not None and self._live.is_serving

    @property
    def term(self) -> int:
        return self._live.core.replica.term if self._live else self._log.term

    @property
    def commit_index(self) -> Index:
        live = self._live
        return Index(live.core.replica.log.committed) if live else self._log.commit_index

    @property
    def applied_index(self) -> Index:
        return self._live.partition.applied_index if self._live else Index(0)

    @property
    def digest(self) -> int:
        """A running hash of all that was applied."""
        return self._live.partition.digest if self._live else 0

    @property
    def edge(self) -> Edge:
        """The edge behind the last applied entry."""
        return self._live.state.edge if self._live else Edge()

    @property
    def checkpoint(self) -> Checkpoint | None:
        """All that is applied, as it would be kept beside a segment; None while it mends."""
        return self._live.state.checkpoint() if self._live else None

    @property
    def configuration(self) -> Configuration:
        return self._live.core.replica.configuration if self._live else Configuration()

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings, as far as they are applied here."""
        return self._live.partition.settings if self._live else TopicSettings()

    @property
    def catalog(self) -> Catalog | None:
        """The applied state; not to be changed. None while this replica mends its log."""
        return self._live.partition.catalog if self._live else None

    @property
    def groups(self) -> Groups | None:
        """The applied state; not to be changed. None while this replica mends its log."""
        return self._live.partition.groups if self._live else None

    @property
    def producers(self) -> ProducerTable | None:
        """The applied state; not to be changed. None while this replica mends its log."""
        return self._live.partition.producers if self._live else None

    @property
    def status(self) -> Status | None:
        """The status of the Raft core; None while this replica mends its log."""
        return self._live.core.status() if self._live else None

    def lag_of(self, member: int) -> int | None:
        """How many entries a member is behind, as its leader knows; None if it does not."""
        if self._live is None or not self.is_leader:
            return None
        core = self._live.core.replica
        progress = core.progress.get(member)
        return core.log.last_index - progress.match if progress and progress.match else None

    def can_spare(self, member: int, away: Collection[int]) -> bool:
        """Whether others than this member and those `away` have what is committed, and are enough
        to go on: it may get the rest later."""
        if self._live is None or not self.is_leader:
            return False
        core = self._live.core
        committed = core.replica.log.committed
        behind = (
            other for other, progress in core.replica.progress.items() if progress.match < committed
        )
        return core.has_quorum_without({member, *away, *behind})

    def tick(
        self,
        now_ms: int,  # noqa: ARG002  (no timer here follows the clock yet)
        away: Collection[int] = (),
    ) -> None:
        """One tick has passed on this node's clock. `away`: members whose nodes are silent."""
        if self._repair is not None:
            self._effects += self._repair.tick()
        if self._live is not None and self._sleeper is not None and not self.is_asleep:
            self._tick_awake(self._live, self._sleeper, away)

    def _tick_awake(self, live: Member, sleeper: Sleeper, away: Collection[int]) -> None:
        # First, so that no answer to a heartbeat of this tick is on its way to a sleeper.
        self._effects += sleeper.tick(is_busy=self._is_busy, away=away)
        if sleeper.is_asleep:
            return
        for member in self._sending.tick():
            live.core.report_snapshot(member, arrived=False)
        self._tick_receiving()
        live.tick()

    @property
    def _is_busy(self) -> bool:
        is_transferring = self._sending.is_busy or self._receiving is not None
        return is_transferring or self._live is None or self._live.is_busy

    def depends_on(self, member: int) -> bool:
        """Whether a sleeper here must be woken when that member's node is back or starts anew."""
        if self.is_leader:
            return member in self.configuration.members
        return member == self.leader

    def misses(self, away: Collection[int]) -> bool:
        """Whether a sleeper here must be woken while these members' nodes are silent: one of them
        leads it, or it leads and the others are no majority."""
        if self.is_leader:
            return self._live is not None and not self._live.core.has_quorum_without(away)
        return self.leader in away

    def lose_leader(self) -> None:
        """The leader's node was silent for an election timeout: vote for another without waiting
        for one more. Leases of reads do not outlive that time, so none is broken."""
        self.wake()
        if self._live is not None:
            self._live.core.forget_leader()

    def wake(self) -> None:
        """Be awake: something happened that this replica may have to know of. Safe at any time."""
        if self._sleeper is not None:
            self._sleeper.wake()

    def produce(self, token: Token, frame: Frame, now_ms: int) -> None:
        """Store a batch; answered with `Produced` when it is committed."""
        if live := self._at_work(token):
            live.produce(token, frame, now_ms)

    @property
    def at_once(self) -> Member | None:
        """The live member, which may take writes at once; None while it sleeps or mends."""
        return None if self.is_asleep else self._live

    def restore(self, token: Token, frame: Frame) -> None:
        """Store a batch of a backup at the offset and with the time that it had, or a command that
        restores; answered as `produce`, or with `Changed`."""
        if live := self._at_work(token):
            live.restore(token, frame)

    def read(self, token: Token) -> None:
        """Answered with `ReadReady` when all that was acknowledged before is applied here."""
        if live := self._at_work(token):
            live.read(token)

    def change_membership(self, token: Token, change: MembershipChange) -> None:
        """Answered with `Changed` when the change is in force."""
        if live := self._at_work(token):
            live.change_membership(token, change)

    def change_settings(self, token: Token, settings: TopicSettings, now_ms: int) -> None:
        """Answered with `Changed` when the settings are in force."""
        if live := self._at_work(token):
            live.change_settings(token, settings, now_ms)

    def change_catalog(
        self,
        token: Token,
        base: int,
        put: Mapping[str, Json],
        delete: Iterable[str],
        now_ms: int,
    ) -> None:
        """Answered with `Changed`, or with `Overloaded` if version `base` was history by then."""
        if live := self._at_work(token):
            live.change_catalog(token, base, put, delete, now_ms)

    def with_leases(
        self, act: Callable[[LeaseManager], T], token: Token | None, now_ms: int, steady_ms: int
    ) -> T:
        """Serve a consumer: what `act` returns. Raises what it raises, or `NotLeader`.

        With a token: answered with `Changed` when all operations of the lease manager so far are
        committed, also those of other acts. If this raises, there is no answer.
        """
        self.wake()
        if self._live is None:
            raise NotLeader(f"member {self.member} mends its log")
        return self._live.with_leases(act, token, now_ms, steady_ms)

    def _at_work(self, token: Token) -> Member | None:
        """The live member, awake, or a refusal."""
        self.wake()
        if self._live is None:
            self._refuse(token)
        return self._live

    def transfer_leader(self, target: int) -> None:
        """Hand leadership over, if this replica leads; given up after an election timeout."""
        self.wake()
        if self._live is not None and self.is_leader:
            self._live.transfer_leader(target)

    def hand_over(self) -> list[Send]:
        """Mail that lets the follower with the longest log stand for election, before an election
        timeout. Nothing but mail: what this replica would write, it cannot be trusted with."""
        others = [voter for voter in self.configuration.voters if voter != self.member]
        if not (self.is_leader and others):
            return []
        lags = {voter: self.lag_of(voter) for voter in others}
        known = {voter: lag for voter, lag in lags.items() if lag is not None}
        self.transfer_leader(min(known, key=known.__getitem__, default=others[0]))
        return [effect for effect in self.take_effects() if isinstance(effect, Send)]

    def campaign(self) -> None:
        """Stand for election now: saves waiting for a timeout. Not if there is a leader, nor while
        votes are on their way here: a second candidacy would make them void."""
        if self._live is not None and not self.leader and self.role is not Role.CANDIDATE:
            self.wake()
            self._live.core.campaign()

    def persisted(self, number: int) -> None:
        """The `Persist` with this number is durable."""
        self.wake()
        if self._live is not None:
            self._live.persisted(number)

    def repaired(self) -> None:
        """The last `Repair` is durable."""
        if self._repair is not None and self._repair.repaired():
            self._start()

    def receive(self, sender: int, mail: Mail) -> None:
        """Mail of the replica on another node."""
        if self._repair is not None:
            self._repair.meet(sender)
            if isinstance(mail, EntriesReply):
                self._mend(self._repair, mail)
        elif self._live is not None and self._sleeper is not None:
            self._sleeper.hear(sender)
            if isinstance(mail, Sleep):
                self._sleeper.follow(sender, mail, is_busy=self._is_busy)
            elif self._sleeper.minds(mail):
                self._receive_live(self._live, sender, mail)

    def _receive_live(self, live: Member, sender: int, mail: Mail) -> None:
        match mail:
            case Consensus(message) if message.sender == sender and message.snapshot is None:
                if not (message.kind in _CANDIDACY and self._is_blank(live)):
                    live.step(message)
            case Offer():
                self._consider(live, sender, mail)
            case ChunkRequest():
                self._effects.append(Send(sender, self._sending.part(sender, mail)))
            case Chunk():
                self._take(live, sender, mail)
            case TransferEnded():
                self._sending.end(sender, mail)
                live.core.report_snapshot(sender, arrived=mail.arrived)
            case EntriesRequest():
                self._effects.append(Send(sender, live.entries_for(mail)))

    @staticmethod
    def _is_blank(live: Member) -> bool:
        """Whether no leader has told this replica yet who the members are. It may have been one
        before it was moved away, with a log that others count on: it must not vote as if it had
        never known anything (decision 0013)."""
        return not live.core.replica.configuration.members

    def _with_offer(self, effect: Effect) -> Effect | None:
        """A snapshot leaves as an offer; the core learns at once if it cannot be read."""
        if not (isinstance(effect, Send) and isinstance(effect.mail, Consensus)):
            return effect
        message = effect.mail.message
        if message.kind is not Said.SNAPSHOT:
            return effect
        offer = self._sending.offer(message)
        if offer is not None:
            return Send(effect.to, offer)
        if self._live is not None:
            self._live.core.report_snapshot(effect.to, arrived=False)
        return None

    def _consider(self, live: Member, sender: int, offer: Offer) -> None:
        """A leader offers a checkpoint: go on with the one that is coming in, or begin."""
        snapshot = offer.message.snapshot
        if snapshot is None or offer.message.sender != sender:
            return
        if snapshot.index <= live.core.replica.log.committed:
            live.step(offer.message)
            self._end_transfer(sender, Index(snapshot.index + 1), arrived=True)
            return
        if offer.size > self._settings.checkpoint_bytes_max:
            self._end_transfer(sender, Index(snapshot.index + 1), arrived=False)
            return
        receiving = self._receiving
        if receiving is not None and receiving.is_same(offer):
            receiving.offer, receiving.sender, receiving.idle_ticks = offer, sender, 0
        else:
            receiving = self._receiving = Receiving(offer, sender)
        self._effects.append(Send(sender, receiving.request()))

    def _take(self, live: Member, sender: int, chunk: Chunk) -> None:
        receiving = self._receiving
        if receiving is None or sender != receiving.sender:
            return
        if not receiving.take(chunk):
            if not chunk.data and chunk.at == len(receiving.data):
                self._receiving = None
                self._end_transfer(sender, receiving.index, arrived=False)
            return
        if not receiving.is_complete:
            self._effects.append(Send(sender, receiving.request()))
            return
        self._receiving = None
        try:
            # `UnsupportedFormat` leaves here: without a later release this replica cannot go on.
            message = receiving.finish()
        except Corrupt:
            self._end_transfer(sender, receiving.index, arrived=False)
            return
        live.step(message)
        self._end_transfer(sender, receiving.index, arrived=True)

    def _end_transfer(self, to: int, index: Index, *, arrived: bool) -> None:
        self._effects.append(Send(to, TransferEnded(index, arrived)))

    def _tick_receiving(self) -> None:
        receiving = self._receiving
        if receiving is None:
            return
        receiving.idle_ticks += 1
        if receiving.idle_ticks > self._settings.transfer_ticks:
            self._receiving = None
        elif receiving.idle_ticks % self._settings.retry_ticks == 0:
            self._effects.append(Send(receiving.sender, receiving.request()))

    def _mend(self, repair: LogRepair, reply: EntriesReply) -> None:
        step = repair.take(reply)
        if step is None or isinstance(step, tuple):
            self._effects += [Send(*step)] if step else []
        else:
            self._effects.append(step)

    def _refuse(self, token: Token) -> None:
        reason = self._repair.reason if self._repair else "it is not started"
        self._effects.append(
            Answer(
                token, NotLeader(f"replica {self.member} is damaged and does not lead: {reason}")
            )
        )

    def validate(self) -> None:
        """Re-check every invariant; raises `BrokenInvariant`."""
        if self._live is not None:
            self._live.validate()
