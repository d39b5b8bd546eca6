"""Packs a group into columns of numbers, and restores it: quick, however many pieces it has."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from struct import Struct
from typing import Final

from quivermq.errors import BrokenInvariant
from quivermq.intervals import IntervalSet
from quivermq.queue.columns import ColumnReader, column
from quivermq.queue.delayed import DueKey
from quivermq.queue.failure_reasons import FailureReason, FailureReasons
from quivermq.queue.group import DyingMessages, Group, Lease, SettledLease, Totals
from quivermq.queue.last_holders import LastHolder, LastHolders
from quivermq.queue.pieces import Piece, messages_in
from quivermq.queue.priority_index import LEVELS
from quivermq.queue.redelivery_queue import Parked, RedeliveryQueue

# Number, start, floor, committed + 1, claimed, next dying, dead epoch, due (two),
# totals (four), whether it is shared; then how much of what follows.
_HEAD: Final = Struct("<13Q?9I")
_REDRIVE, _STALE = 1, 2
# Number of the group; how many reasons and revivals follow.
_ADDITIONS_HEAD: Final = Struct("<Q2I")


def pack_group(group: Group) -> bytes:
    """All of a group."""
    name = group.name.encode()
    totals = group.totals
    pieces = list(chain.from_iterable(lease.pieces for lease in group.leases.values()))
    waiting = group.waiting.parked()
    reasons = [record.reason.encode() for record in group.dying.values()]
    head = _HEAD.pack(
        group.number, group.start, group.floor,
        0 if group.committed is None else group.committed + 1,
        group.claimed, group.next_dying, group.dead_epoch, *group.due,
        totals.done, totals.dead, totals.lost, totals.redelivered, group.is_shared,
        len(name), len(group.done), len(group.leases), len(pieces), len(waiting), len(reasons),
        len(group.settled_leases), group.settled_intervals, len(group.last_holders),
    )  # fmt: skip
    return b"".join(
        (
            head,
            name,
            column("Q", group.cursors),
            *_intervals([group.done]),
            column("Q", group.leases),
            column("Q", [lease.consumer for lease in group.leases.values()]),
            column("Q", [lease.visibility_ms for lease in group.leases.values()]),
            column("B", [lease.is_whole for lease in group.leases.values()]),
            column("I", [len(lease.pieces) for lease in group.leases.values()]),
            *_pieces(pieces),
            *_pieces([parked.piece for parked in waiting]),
            column("Q", [parked.due_ms for parked in waiting]),
            *_dying(group.dying.values()),
            column("I", map(len, reasons)),
            *reasons,
            *_settled_leases(group.settled_leases),
            *(column("Q", map(itemgetter(at), group.last_holders)) for at in range(4)),
        )
    )


def _intervals(sets: Iterable[IntervalSet]) -> Iterable[bytes]:
    sets = list(sets)
    yield column("Q", chain.from_iterable(one.starts for one in sets))
    yield column("Q", chain.from_iterable(one.ends for one in sets))


def _pieces(pieces: Sequence[Piece]) -> Iterable[bytes]:
    yield column("Q", [piece.start for piece in pieces])
    yield column("Q", [piece.end for piece in pieces])
    yield column("B", [piece.priority for piece in pieces])
    yield column("I", [piece.failures for piece in pieces])


def _dying(records: Iterable[DyingMessages]) -> Iterable[bytes]:
    records = list(records)
    yield column("Q", [record.number for record in records])
    yield column("Q", [record.start for record in records])
    yield column("Q", [record.end for record in records])
    yield column("Q", [record.failures for record in records])
    yield column("Q", [record.at_ms for record in records])
    flags = (_REDRIVE * record.redrive + _STALE * record.is_stale for record in records)
    yield column("B", flags)


def _settled_leases(settled_leases: Mapping[int, SettledLease]) -> Iterable[bytes]:
    yield column("Q", settled_leases)
    yield column("Q", [known.consumer for known in settled_leases.values()])
    yield column("B", [known.is_whole for known in settled_leases.values()])
    yield column("I", [len(known.done) for known in settled_leases.values()])
    yield from _intervals(known.done for known in settled_leases.values())


def unpack_group(reader: ColumnReader) -> Group:
    """The group that `pack_group` packed."""
    number, start, floor, committed, *rest = reader.values(_HEAD)
    claimed, next_dying, dead_epoch, due_ms, due_start, *rest = rest
    totals, is_shared, sizes = Totals(*rest[:4]), rest[4], rest[5:]
    name, done, leases, pieces, waiting, dying, settled_leases, settled_intervals, holders = sizes
    group = Group(number, bytes(reader.take(name)).decode(), start, is_shared, floor)
    group.cursors = reader.column("Q", LEVELS + 1).tolist()
    group.done = IntervalSet.of_columns(reader.column("Q", done), reader.column("Q", done))
    group.due, group.totals = DueKey(due_ms, due_start), totals
    group.committed = committed - 1 if committed else None
    group.claimed = claimed
    group.next_dying, group.dead_epoch = next_dying, dead_epoch
    _read_leases(reader, group, leases, pieces)
    found = _read_pieces(reader, waiting)
    group.waiting = RedeliveryQueue.of(map(Parked, found, reader.column("Q", waiting)))
    _read_dying(reader, group, dying)
    _read_settled_leases(reader, group, settled_leases, settled_intervals)
    columns = [reader.column("Q", holders) for _ in range(4)]
    group.last_holders = LastHolders(map(LastHolder._make, zip(*columns, strict=True)))
    return group


def pack_additions(group: Group) -> bytes:
    """The additions of feature level 2 to a group; nothing for one that makes no use of it."""
    if not len(group.reasons) and not group.revivals:
        return b""
    reasons = [known.reason.encode() for known in group.reasons]
    return b"".join(
        (
            _ADDITIONS_HEAD.pack(group.number, len(reasons), len(group.revivals)),
            column("Q", [known.start for known in group.reasons]),
            column("Q", [known.end for known in group.reasons]),
            column("I", map(len, reasons)),
            *reasons,
            column("Q", group.revivals),
        )
    )


def unpack_additions(reader: ColumnReader, groups: Mapping[int, Group]) -> None:
    """Put what `pack_additions` packed into the group that it is of."""
    number, reasons, revivals = reader.values(_ADDITIONS_HEAD)
    if number not in groups:
        raise BrokenInvariant(f"something is added to group {number}, which is not there")
    group = groups[number]
    starts, ends = reader.column("Q", reasons), reader.column("Q", reasons)
    lengths = reader.column("I", reasons)
    texts = [bytes(reader.take(length)).decode() for length in lengths]
    group.reasons = FailureReasons(map(FailureReason, starts, ends, texts))
    group.revivals = dict.fromkeys(reader.column("Q", revivals))


def _read_pieces(reader: ColumnReader, count: int) -> list[Piece]:
    columns = [reader.column(code, count) for code in ("Q", "Q", "B", "I")]
    return list(map(Piece._make, zip(*columns, strict=True)))


def _read_leases(reader: ColumnReader, group: Group, leases: int, pieces: int) -> None:
    numbers, consumers, visibilities = (reader.column("Q", leases) for _ in range(3))
    wholes, counts = reader.column("B", leases), reader.column("I", leases)
    found = _read_pieces(reader, pieces)
    parts = pairwise(accumulate(counts, initial=0))
    columns = (numbers, consumers, visibilities, wholes, parts)
    for number, consumer, visibility_ms, is_whole, (low, high) in zip(*columns, strict=True):
        group.leases[number] = Lease(consumer, visibility_ms, found[low:high], bool(is_whole))
    group.leased_messages, group.leased_pieces = messages_in(found), pieces


def _read_dying(reader: ColumnReader, group: Group, count: int) -> None:
    columns = [reader.column("Q", count) for _ in range(5)]
    flags, lengths = reader.column("B", count), reader.column("I", count)
    for number, start, end, failures, at_ms, flag, length in zip(
        *columns, flags, lengths, strict=True
    ):
        reason = bytes(reader.take(length)).decode()
        redrive, is_stale = bool(flag & _REDRIVE), bool(flag & _STALE)
        group.dying[number] = DyingMessages(
            number, start, end, failures, reason, at_ms, redrive, is_stale
        )
        group.reason_bytes += length
        group.dying_messages += 0 if is_stale else end - start


def _read_settled_leases(reader: ColumnReader, group: Group, count: int, intervals: int) -> None:
    numbers, consumers = reader.column("Q", count), reader.column("Q", count)
    wholes, counts = reader.column("B", count), reader.column("I", count)
    starts, ends = reader.column("Q", intervals), reader.column("Q", intervals)
    parts = pairwise(accumulate(counts, initial=0))
    columns = (numbers, consumers, wholes, parts)
    for lease, consumer, is_whole, (low, high) in zip(*columns, strict=True):
        done = IntervalSet.of_columns(starts[low:high], ends[low:high])
        group.settled_leases[lease] = SettledLease(consumer, done, bool(is_whole))
    group.settled_intervals = intervals
