"""One replica of one partition, composed without I/O: inputs in, effects out.

    replica.tick(now_ms) · receive(sender, mail) · produce(token, frame, now_ms) · persisted(number)
    for effect in replica.take_effects(): carry it out

Nothing here waits, so nothing can change between a check and its act. Every request gets exactly
one answer. `Corrupt` out of any method, or out of `carry_out`, means that the log turned out to be
damaged: discard the replica and make a new one over the same `Log`, which then mends it. Not over
one that is opened anew: it takes sealed segments by their footers, and would not know.
"""

from quivermq.batches import Frame, Index
from quivermq.errors import Corrupt, NotLeader
from quivermq.log import Edge, Log
from quivermq.queue import TopicSettings
from quivermq.raft import NOBODY, Configuration, Dice, MembershipChange, Role
from quivermq.raft import Kind as Said
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
    Token,
    TransferEnded,
)
from quivermq.replica.member import Member
from quivermq.replica.mending import Mending
from quivermq.replica.settings import ReplicaSettings
from quivermq.replica.transfer import Receiving, Sending


class Replica:
    """A partition's replica on one node: a live member, or one that mends its log."""

    def __init__(self, member: int, log: Log, settings: ReplicaSettings, dice: Dice) -> None:
        self.member = member
        self._log = log
        self._settings = settings
        self._dice = dice
        self._effects: list[Effect] = []
        self._sending = Sending(log, settings)
        self._receiving: Receiving | None = None
        self._live: Member | None = None
        self._mending: Mending | None = None
        if log.damage:
            self._mending = Mending(member, log, settings)
        else:
            self._start()

    def _start(self) -> None:
        self._mending = None
        self._live = Member(self.member, self._log, self._settings, self._dice, self._effects)

    def take_effects(self) -> list[Effect]:
        """All that follows from the inputs since the last call, in order."""
        if self._live is not None:
            self._live.advance()
        taken = [self._with_offer(effect) for effect in self._effects]
        self._effects.clear()
        return [effect for effect in taken if effect is not None]

    @property
    def is_mending(self) -> bool:
        """Whether the log is damaged, so that this replica neither votes nor leads."""
        return self._mending is not None

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be known what the log lost: the replica has to be replaced."""
        return self._mending is not None and not self._mending.can_end

    @property
    def leader(self) -> int:
        """Who leads, as far as this replica knows; 0 if it does not."""
        return self._live.core.replica.leader if self._live else NOBODY

    @property
    def is_leader(self) -> bool:
        return self._live is not None and self._live.core.replica.role is Role.LEADER

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
    def configuration(self) -> Configuration:
        return self._live.core.replica.configuration if self._live else Configuration()

    def tick(self, now_ms: int) -> None:  # noqa: ARG002  (no timer here follows the clock yet)
        """One tick has passed on this node's clock."""
        if self._mending is not None:
            self._ask(self._mending.tick())
        if self._live is not None:
            for member in self._sending.tick():
                self._live.core.report_snapshot(member, arrived=False)
            self._tick_receiving()
            self._live.tick()

    def produce(self, token: Token, frame: Frame, now_ms: int) -> None:
        """Store a batch; answered with `Produced` when it is committed."""
        if self._live is None:
            self._refuse(token)
        else:
            self._live.produce(token, frame, now_ms)

    def read(self, token: Token) -> None:
        """Answered with `ReadReady` when all that was acknowledged before is applied here."""
        if self._live is None:
            self._refuse(token)
        else:
            self._live.read(token)

    def change_membership(self, token: Token, change: MembershipChange) -> None:
        if self._live is None:
            self._refuse(token)
        else:
            self._live.change_membership(token, change)

    def change_settings(self, token: Token, settings: TopicSettings, now_ms: int) -> None:
        if self._live is None:
            self._refuse(token)
        else:
            self._live.change_settings(token, settings, now_ms)

    def transfer_leader(self, target: int) -> None:
        """Hand leadership over, if this replica leads; given up after an election timeout."""
        if self._live is not None and self.is_leader:
            self._live.core.transfer_leader(target)

    def persisted(self, number: int) -> None:
        """The `Persist` with this number is durable."""
        if self._live is not None:
            self._live.persisted(number)

    def repaired(self) -> None:
        """The last `Repair` is durable."""
        if self._mending is not None and self._mending.repaired():
            self._start()

    def receive(self, sender: int, mail: Mail) -> None:
        """Mail of the replica on another node."""
        if self._mending is not None:
            self._mending.meet(sender)
            if isinstance(mail, EntriesReply):
                self._mend(self._mending, mail)
        elif self._live is not None:
            self._receive_live(self._live, sender, mail)

    def _receive_live(self, live: Member, sender: int, mail: Mail) -> None:
        match mail:
            case Consensus(message) if message.sender == sender and message.snapshot is None:
                live.step(message)
            case Offer():
                self._consider(live, sender, mail)
            case ChunkRequest():
                self._effects.append(Send(sender, self._sending.part(sender, mail)))
            case Chunk():
                self._take(live, sender, mail)
            case TransferEnded():
                self._sending.ended(sender)
                live.core.report_snapshot(sender, arrived=mail.arrived)
            case EntriesRequest():
                self._effects.append(Send(sender, live.entries_for(mail)))

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
            message = receiving.finished()
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

    def _mend(self, mending: Mending, reply: EntriesReply) -> None:
        step = mending.take(reply)
        if step is None or isinstance(step, tuple):
            self._ask(step)
        else:
            self._effects.append(step)

    def _ask(self, question: tuple[int, EntriesRequest] | None) -> None:
        if question is not None:
            self._effects.append(Send(*question))

    def _refuse(self, token: Token) -> None:
        reason = self._mending.reason if self._mending else "it is not started"
        self._effects.append(
            Answer(
                token, NotLeader(f"replica {self.member} is damaged and does not lead: {reason}")
            )
        )

    def validate(self) -> None:
        """Re-check every invariant; raises `BrokenInvariant`."""
        if self._live is not None:
            self._live.validate()
