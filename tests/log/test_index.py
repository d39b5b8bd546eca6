"""The index of a segment."""

import pytest
from crc32c import crc32c

from quivermq.batches import Index, Offset
from quivermq.errors import Corrupt
from quivermq.log import Edge
from quivermq.log.index import SegmentIndex
from tests.log.entries import entry


def index_of(terms: list[int]) -> tuple[SegmentIndex, list[Edge]]:
    start = Edge(Index(10), Offset(100), 1, 5)
    index, edge, edges, position = SegmentIndex(Index(10)), start, [start], 68
    for term in terms:
        frame = entry(edge, term=term, count=2, at_ms=position)
        edge = edge.after(frame.header)
        index.add(frame, position, edge.timestamp_ms)
        edges.append(edge)
        position += len(frame)
    return index, edges


def test_packing_and_unpacking_gives_the_same_index() -> None:
    index, _ = index_of([1, 1, 2, 2, 7])
    packed = index.pack()
    again = SegmentIndex.unpack(Index(10), packed, crc32c(packed))
    assert again.pack() == packed
    assert [again.term_at(Index(10 + n)) for n in range(5)] == [1, 1, 2, 2, 7]


def test_an_index_that_lies_about_its_length_or_content_is_refused() -> None:
    packed = index_of([1, 2])[0].pack()
    with pytest.raises(Corrupt, match="checksum"):
        SegmentIndex.unpack(Index(10), packed, crc32c(packed) ^ 1)
    lying = packed[:4] + b"\xff\xff\xff\x7f" + packed[8:]
    with pytest.raises(Corrupt, match="entries"):
        SegmentIndex.unpack(Index(10), lying, crc32c(lying))


def test_the_edge_before_each_entry_is_what_it_was_when_it_was_appended() -> None:
    index, edges = index_of([1, 1, 3, 3, 4])
    for number, edge in enumerate(edges[:-1]):
        assert index.edge_before(Index(10 + number), edges[0]) == edge


def test_an_entry_costs_24_bytes() -> None:
    small, large = index_of([1] * 10)[0].pack(), index_of([1] * 1010)[0].pack()
    assert len(large) - len(small) == 1000 * 24


def test_cutting_forgets_entries_and_their_terms() -> None:
    index, edges = index_of([1, 1, 3, 3, 4])
    cut = index.before(Index(12))
    assert len(cut) == 2
    assert cut.runs == [(10, 1)]
    assert cut.with_offset(edges[1].next_offset) == 11
    assert len(index) == 5, "who reads the old one is not disturbed"
