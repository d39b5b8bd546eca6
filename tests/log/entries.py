"""Entries for the log's tests: real headers over short bodies, which the log never looks into."""

from random import Random

from crc32c import crc32c

from quivermq.batches import Frame, FrameKind, Header
from quivermq.log import Edge

LOG_ID = b"a log of tests.."


def entry(
    edge: Edge, *, term: int = 1, body: bytes = b"body", count: int = 1, at_ms: int = 0
) -> Frame:
    """An entry that follows `edge`."""
    header = Header(
        kind=FrameKind.DATA if count else FrameKind.COMMAND,
        body_bytes=len(body),
        body_crc=crc32c(body),
        term=max(term, edge.term),
        index=edge.next_index,
        base_offset=edge.next_offset,
        timestamp_ms=max(at_ms, edge.timestamp_ms),
        count=count,
        decoded_bytes=len(body),
    )
    return Frame(header, body)


def entries(edge: Edge, count: int, **fields: int | bytes) -> list[Frame]:
    """So many entries in a row."""
    made = []
    for _ in range(count):
        frame = entry(edge, **fields)  # type: ignore[arg-type]
        edge = edge.after(frame.header)
        made.append(frame)
    return made


def random_entries(random: Random, edge: Edge, term: int) -> list[Frame]:
    """A group as a busy broker writes it: some short, some past a sector, some without messages."""
    made = []
    for _ in range(random.randint(1, 6)):
        body = random.randbytes(random.choice((0, 1, 30, 200, 700, 1500)))
        frame = entry(
            edge, term=term, body=body, count=random.randint(0, 3), at_ms=random.randint(0, 999)
        )
        edge = edge.after(frame.header)
        made.append(frame)
    return made
