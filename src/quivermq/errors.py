"""The error tree: every refusal that a user can meet, each with a `code` and `retriable`.

    QuiverError
    ├── InvalidRequest          what was asked makes no sense; asking again will not help
    │   ├── TooLarge            ... because it is past a limit
    │   ├── StoredBefore        ... because it is stored, too long ago to say where
    │   └── SequenceReused      ... because another batch is stored under its number
    ├── TopicNotFound, TopicExists
    ├── OffsetOutOfRange        the offset is no longer kept, or not there yet
    ├── NotLeader, NotEnoughReplicas, Timeout, Overloaded, ConnectionFailed      (retriable)
    ├── OutOfSequence           a producer's batch came before the one it follows    (retriable)
    ├── LeaseLost, Fenced       another client has it now
    ├── Unauthenticated, Forbidden
    ├── Corrupt                 bytes that fail their checks
    ├── UnsupportedFormat       intact bytes of another release, which this one does not read
    ├── StorageFailed           the disk refused; the log that met it takes no more writes
    │   └── StorageFull         no space; the log is intact, and works again with space
    └── UnknownError            a server of a later release refused by a name not in this list

    BrokenInvariant             not a refusal: our own code is wrong; the part that noticed stops

Imports nothing of ours: any module may import it.
"""

from collections.abc import Sequence


class QuiverError(Exception):
    """The root of everything that QuiverMQ raises at its users."""

    retriable: bool = False

    @property
    def code(self) -> str:
        """The name that travels: in JSON, in gRPC details, in logs."""
        return type(self).__name__


class InvalidRequest(QuiverError):
    """The request can never succeed as it stands."""


class TooLarge(InvalidRequest):
    """A message, batch, header or name is past its limit."""


class StoredBefore(InvalidRequest):
    """A producer repeats a batch that is older than all whose place is remembered: it is stored."""


class SequenceReused(InvalidRequest):
    """A producer's number belongs to another batch: does another producer use the same id?"""


class TopicNotFound(QuiverError):
    """There is no such topic."""


class TopicExists(QuiverError):
    """The topic exists with other settings."""


class OffsetOutOfRange(QuiverError):
    """The offset is not kept; `earliest` and `end` say what is."""

    def __init__(self, message: str, *, earliest: int, end: int) -> None:
        super().__init__(message)
        self.earliest = earliest
        self.end = end


class NotLeader(QuiverError):
    """This replica does not lead the partition; `leader` does, if that is known (else 0).

    `leader_address` is where clients reach it, once the refusal has travelled to one.
    """

    retriable = True

    def __init__(self, message: str, *, leader: int = 0, leader_address: str = "") -> None:
        super().__init__(message)
        self.leader = leader
        self.leader_address = leader_address


class NotEnoughReplicas(QuiverError):
    """No majority of replicas can be reached."""

    retriable = True


class Timeout(QuiverError):
    """No answer in time; the outcome is unknown."""

    retriable = True


class Overloaded(QuiverError):
    """A bounded queue is full; come back later."""

    retriable = True


class ConnectionFailed(QuiverError):
    """No server could be reached."""

    retriable = True


class LeaseLost(QuiverError):
    """These messages are not leased to the caller any more: the lease expired, or its leader failed
    before the lease was replicated, or the group was sought elsewhere. Of a nack or a rejection
    also: the answer to a first attempt was lost, and maybe it had taken effect.

    `lost` says which messages: topic, partition, first offset, and the offset behind the last.
    Everything else that was settled by the same call is settled.
    """

    def __init__(self, message: str, *, lost: Sequence[tuple[str, int, int, int]] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)


class Fenced(QuiverError):
    """A newer holder of the same identity exists."""


class OutOfSequence(QuiverError):
    """A producer skipped a sequence number; `expected` comes next.

    `may_be_forgotten`: the partition does not know the producer, but knew others that it has
    forgotten since, and perhaps this one too. What was sent before may be stored.
    """

    retriable = True

    def __init__(self, message: str, *, expected: int, may_be_forgotten: bool = False) -> None:
        super().__init__(message)
        self.expected = expected
        self.may_be_forgotten = may_be_forgotten


class Unauthenticated(QuiverError):
    """The token or certificate is missing or unknown."""


class Forbidden(QuiverError):
    """The user may not do this."""


class Corrupt(QuiverError):
    """Bytes that fail their checksum or contradict themselves."""


class UnsupportedFormat(QuiverError):
    """Intact bytes of another release, which this one does not read.

    Not a kind of `Corrupt`: what is damaged is cut or fetched again, what is unknown is left alone.
    """


class StorageFailed(QuiverError):
    """A disk operation failed in a way that leaves its outcome unknown."""


class StorageFull(StorageFailed):
    """The disk refused for lack of space."""

    retriable = True

    undone = False
    """Set by the code that met the refusal and undid its work: only then may writes go on."""


class UnknownError(QuiverError):
    """A refusal that this release has no name for; `code` is the server's."""

    def __init__(self, message: str, *, code: str, retriable: bool) -> None:
        super().__init__(message)
        self._code = code
        self.retriable = retriable

    @property
    def code(self) -> str:
        return self._code


class BrokenInvariant(RuntimeError):
    """Our own code is wrong. Never caught to carry on: the part that raises it stops."""
