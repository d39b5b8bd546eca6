"""What a replica does when its log or its state machine cannot go on: halts, begins again, or ends.

Damage is mended from other replicas, by a replica made anew over the same log. A disk that failed
is read anew, until that succeeds. What a later release wrote waits for that release. Meanwhile
somebody else leads, and what was applied here can be read where that is safe.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from quivermq.errors import (
    BrokenInvariant,
    Corrupt,
    NotLeader,
    OffsetOutOfRange,
    QuiverError,
    StorageFailed,
    UnsupportedFormat,
)
from quivermq.log import Log, Owner
from quivermq.node.crew import Crew
from quivermq.node.disk_work import Opened, Work, open_log, opened
from quivermq.node.group_names import PartitionName
from quivermq.node.remedies import lost_text, repair_text
from quivermq.replica import Mail, Replica, ReplicaState, Rouse, Send

logger = logging.getLogger("quivermq.replica")

_OPEN_AGAIN_S: Final = 1.0
STUMBLES: Final = (
    Corrupt, OffsetOutOfRange, StorageFailed, UnsupportedFormat, BrokenInvariant,
)  # fmt: skip


class ReplicaHalts:
    """The part of a replica that deals with its own failures."""

    id: bytes
    name: PartitionName
    member: int
    log: Log
    replica: Replica
    trouble: str
    is_closed: bool
    _host: Crew
    _refusal: QuiverError | None
    _life: int
    _disk_queue: list[Work]
    _writing: list[Work]

    @abstractmethod
    def stir(self) -> None: ...

    @abstractmethod
    def _end_requests(self) -> None: ...

    @abstractmethod
    def _post(self, to: int, mail: Mail) -> None: ...

    @abstractmethod
    def _in_disk_thread(
        self, job: Callable[[], object], done: Callable[[object], None]
    ) -> None: ...

    @abstractmethod
    def _stop_ticking(self) -> None: ...

    def _replica(self, state: ReplicaState | None, *, must_mend: bool = False) -> Replica:
        host, log = self._host, self.log
        try:
            return Replica(
                self.member, log, host.replica_settings, host.dice, state, must_mend=must_mend
            )
        finally:
            log.forget_checkpoint()

    @property
    def ailment(self) -> str:
        """What is wrong here, and what to do about it; "" if nothing is."""
        return self.trouble or repair_text(self.replica, self.member)

    def _look_for_damage(self) -> None:
        if self.replica.is_lost:
            self._fail(lost_text(f"this replica lost data: {self.log.damage[0]}", self.member))
        elif self.ailment:
            logger.error("%s is damaged: %s", self.name, self.ailment)

    def meet_unreadable(self, error: QuiverError) -> QuiverError:
        """A reader could not read what is stored here. Returns what to tell whoever asked.

        Others have it: they are to lead, while this replica mends its log. One that is alone stays,
        for all the rest that it has.
        """
        if self.replica.is_alone or self.replica.mends_alone:
            kind = Corrupt if isinstance(error, Corrupt) else StorageFailed
            return kind(f"{self.name} has no other replica to read from: {error}")
        if not (self.trouble or self.is_closed or self.replica.is_repairing):
            self._stumbled(error)
        return NotLeader(f"{self.name} is damaged here and is being mended")

    @property
    def is_readable(self) -> bool:
        """Whether what is applied here may be read: it is committed, and the log is at hand."""
        is_halted = bool(self.trouble) and self._refusal is None
        return not (is_halted or self.is_closed or self.replica.is_repairing)

    @property
    def refusal(self) -> QuiverError | None:
        """Why nobody serves this partition, where that is known for sure: there is no other
        replica."""
        if self.replica.mends_alone:
            return Corrupt(f"{self.name} has lost data: {self.ailment}")
        return self._refusal if self.replica.is_alone else None

    def _stumbled(self, error: object) -> None:
        """What a replica, or its disk work, ended in: begin again where that is known to help."""
        if isinstance(error, QuiverError):
            # What our own code broke is not asked for anything more.
            self._hand_over()
        if isinstance(error, UnsupportedFormat):
            # Again would end the same way. It goes on when a release is started that knows it.
            self._refusal = UnsupportedFormat(f"{self.name} stopped: {error}")
            self._fail(str(error))
        elif isinstance(error, Corrupt | OffsetOutOfRange):
            # Corrupt: the log knows what is damaged, and a new replica mends it. Out of range:
            # retention dropped what the core was about to read; a new replica sees what is kept.
            self._begin_again(error)
        elif isinstance(error, StorageFailed):
            self._open_again(error)
        else:
            self._fail(f"it failed: {error!r}")

    def _hand_over(self) -> None:
        """Let who has most stand for election now: nobody should have to miss this leader first."""
        replica = self.replica
        others = [voter for voter in replica.configuration.voters if voter != self.member]
        if not (replica.is_leader and others):
            return
        lags = {voter: replica.lag_of(voter) for voter in others}
        known = {voter: lag for voter, lag in lags.items() if lag is not None}
        with suppress(QuiverError, BrokenInvariant):
            # Mail only: what this replica would write, it cannot be trusted with any more.
            replica.transfer_leader(min(known, key=known.__getitem__, default=others[0]))
            for effect in replica.take_effects():
                if isinstance(effect, Send):
                    self._post(effect.to, effect.mail)

    def _begin_again(self, error: QuiverError) -> None:
        """A replica anew on the same log, which knows its damage. One opened anew would not.

        Once the thread has done what it has in hand: a replica must not be made of a log that is
        being written to, or it could forget a vote.
        """
        if isinstance(error, Corrupt) and not self.log.damage:
            self._open_again(error)
            return
        logger.warning("%s begins again: %s", self.name, error)
        log = self.log
        must_mend = isinstance(error, Corrupt) and not self.replica.is_alone
        self._replace_log(f"it begins again after: {error}", lambda: log, must_mend=must_mend)

    def _open_again(self, error: QuiverError) -> None:
        """Nobody knows what the disk holds: read it. In the thread, behind what it is doing."""
        logger.error("%s is opened anew: %s", self.name, error)
        disk, folder, settings = self._host.disk, self.name.folder, self._host.log_settings
        owner = Owner(self.id, self.member)
        self._replace_log(
            f"it is opened anew after: {error}", lambda: open_log(disk, folder, settings, owner)
        )

    def _replace_log(
        self, trouble: str, get: Callable[[], Log], *, must_mend: bool = False
    ) -> None:
        self._end_requests()
        self._life += 1
        self.trouble = trouble
        life = self._life

        def again(error: object) -> None:
            if life == self._life and not self.is_closed:
                self._open_again(StorageFailed(str(error)))

        def got(result: object) -> None:
            if life != self._life or self.is_closed:
                return
            if isinstance(result, Opened):
                self._renew(result, must_mend=must_mend)
            elif isinstance(result, Corrupt):
                self._fail(lost_text(f"this replica lost its log: {result}", self.member))
            elif isinstance(result, UnsupportedFormat):
                self._fail(str(result))
            else:
                # What is applied can be read all the same, say from a disk that takes no writes.
                self._refusal = StorageFailed(f"{self.name} takes no writes: {result}")
                self._host.later(_OPEN_AGAIN_S, lambda: again(result))

        self._in_disk_thread(lambda: opened(get()), got)

    def _renew(self, found: Opened, *, must_mend: bool) -> None:
        self._end_requests()
        self._life += 1
        self.log, self.trouble, self._refusal = found.log, "", None
        self._disk_queue, self._writing = [], []
        try:
            self.replica = self._replica(found.state, must_mend=must_mend)
        except (QuiverError, BrokenInvariant) as error:
            self._fail(f"the log cannot be used: {error}")
            return
        self._look_for_damage()
        self.stir()

    def give_up(self, error: Exception) -> None:
        """Something that nobody foresaw: nothing of this replica can be trusted any more."""
        logger.error("%s failed", self.name, exc_info=error)
        if not (self.trouble or self.is_closed):
            self._fail(f"it failed: {error!r}")

    def _fail(self, reason: str) -> None:
        self.trouble = reason
        logger.critical("%s stops: %s", self.name, reason)
        for member in self.replica.configuration.members:
            if member != self.member:
                # Those who sleep may believe that this one leads them.
                self._post(member, Rouse())
        self._end_requests()
        self.stir()
        self._stop_ticking()
