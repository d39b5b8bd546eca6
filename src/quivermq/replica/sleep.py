"""Lets idle partitions sleep: no ticks and no messages until one is used (docs/decisions/0012).

A leader that has had nothing to do for a while, and whose members have everything and answer,
tells them so and falls asleep; a member that agrees sleeps too. A minority whose brokers are silent
is not waited for. Anything that happens to a sleeper wakes it. A sleeper does not notice that
others died or came back: its broker watches the peers, and calls `wake`.

Raft's safety does not depend on ticks, so sleep can only cost time, never agreement.
"""

from collections.abc import Collection

from quivermq.batches import Index
from quivermq.raft import MessageKind as Said
from quivermq.raft import RawNode, Role
from quivermq.replica.effects import Consensus, Mail, Rouse, Send, Sleep
from quivermq.replica.settings import ReplicaSettings


class Sleeper:
    """Whether a live member is asleep, and for how long it has had nothing to do."""

    __slots__ = ("_core", "_heard", "_idle_ticks", "_settings", "_ticks", "is_asleep")

    def __init__(self, core: RawNode, settings: ReplicaSettings) -> None:
        self._core = core
        self._settings = settings
        self.is_asleep = False
        self._idle_ticks = 0
        self._ticks = 0
        # At which tick each member was last heard.
        self._heard: dict[int, int] = {}

    def hear(self, member: int) -> None:
        if member in self._core.replica.progress:
            self._heard[member] = self._ticks

    def wake(self) -> None:
        """There is something to do. A sleeper begins all its intervals afresh."""
        self._idle_ticks = 0
        if self.is_asleep:
            self.is_asleep = False
            # Signs of life from before the sleep would count for as long as it has lasted.
            self._heard.clear()
            self._core.restart_timers()

    def minds(self, mail: Mail) -> bool:
        """Whether mail is to be taken in; wakes for all but the pulse of a partition at rest.

        A heartbeat may be answered when its leader sleeps already: that says nothing to it.
        """
        is_pulse = (
            isinstance(mail, Consensus)
            and mail.message.kind is Said.HEARTBEAT_REPLY
            and mail.message.term <= self._core.replica.term
            and not mail.message.reject
        )
        if is_pulse:
            return not self.is_asleep
        self.wake()
        return True

    def tick(self, *, is_busy: bool, away: Collection[int] = ()) -> list[Send]:
        """A tick begins, awake: what to tell the others, if it is time to sleep or to call.

        `away`: members whose brokers are silent. This broker calls `wake` when one is heard again.
        """
        self._ticks += 1
        if is_busy or not self._is_idle_but_for(away):
            self._idle_ticks = 0
            return self._call_for_leader()
        self._idle_ticks += 1
        if not 0 < self._settings.sleep_ticks <= self._idle_ticks:
            return []
        self.is_asleep = True
        replica = self._core.replica
        word = Sleep(replica.term, Index(replica.log.last_index))
        return [Send(member, word) for member in self._others()]

    def follow(self, sender: int, word: Sleep, *, is_busy: bool) -> None:
        """The leader falls asleep: so does a follower that has all that the leader has.

        One that is not as far, or has something to do, stays awake: it will miss the leader, and
        ask for votes, which wakes the leader.
        """
        replica = self._core.replica
        log = replica.log
        agrees = (
            not is_busy
            and replica.role is Role.FOLLOWER
            and (replica.leader, replica.term) == (sender, word.term)
            and log.last_index == log.committed == log.applied == word.index
        )
        if agrees:
            self.is_asleep = True
        else:
            self.wake()

    def _is_idle_but_for(self, away: Collection[int]) -> bool:
        """Whether this member leads, no other needs anything from it, and those that are `away` are
        not needed: a leader without a majority must stay awake, to find out and step down."""
        return (
            self._core.is_settled(away)
            and self._hears_all_but(away)
            and (not away or self._core.has_quorum_without(away))
        )

    def _hears_all_but(self, away: Collection[int]) -> bool:
        """Whether every other member gave a sign of life in the last election timeout.

        A silent one may need something that only an awake leader gives.
        """
        since = self._ticks - self._settings.election_ticks
        heard = self._heard
        return all(
            heard.get(member, since) > since for member in self._others() if member not in away
        )

    def _call_for_leader(self) -> list[Send]:
        """A learner cannot ask for votes, so a sleeping leader would never hear of it."""
        replica = self._core.replica
        is_learner = self._core.id in replica.configuration.learners
        if not is_learner or replica.election_elapsed < replica.election_timeout:
            return []
        replica.election_elapsed = 0
        return [Send(member, Rouse()) for member in self._others()]

    def _others(self) -> list[int]:
        return [member for member in self._core.replica.progress if member != self._core.id]
