"""Arrow data of other libraries goes in and comes out through the PyCapsule interface, and stays
where it is in memory."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import quivermq
from quivermq.client import BulkColumns
from quivermq.client.producer.capsules import as_arrow
from tests.client.brokers import BrokerThread

VALUES = [b"apples", b"", b"a value that is longer than the twelve bytes of a view"]
KEYS = [b"ada", None, b"bob"]


class Offered:
    """An object of a library that knows Arrow's C interface and nothing of pyarrow."""

    def __init__(self, held: Any) -> None:
        self._held = held


class OfferedArray(Offered):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._held.__arrow_c_array__(requested_schema)


class OfferedStream(Offered):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._held.__arrow_c_stream__(requested_schema)


class Broken:
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return "no capsule"


def addresses(column: Any) -> list[int]:
    """Where the memory of a column is."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [buffer.address for chunk in chunks for buffer in chunk.buffers() if buffer is not None]


def table() -> Any:
    return pa.table({"value": pa.array(VALUES), "key": pa.array(KEYS)})


FRAMES: dict[str, Callable[[], Any]] = {
    "polars": lambda: pl.DataFrame({"value": VALUES, "key": KEYS}),
    "polars, text": lambda: pl.DataFrame({"value": VALUES, "key": ["ada", None, "bob"]}),
    "pandas": lambda: pd.DataFrame({"value": VALUES, "key": KEYS}),
    "a stream": lambda: OfferedStream(table()),
    "a reader": lambda: table().to_reader(),
    "an array of rows": lambda: OfferedArray(table().to_batches()[0]),
}


@pytest.mark.parametrize("library", FRAMES)
def test_frames_of_other_libraries_are_produced(
    real: quivermq.Client, topic: str, library: str
) -> None:
    (receipt,) = real.produce_many(topic, FRAMES[library]())
    assert (receipt.first_offset, receipt.count) == (0, 3)
    assert [(m.value, m.key) for m in real.read(topic)] == list(zip(VALUES, KEYS, strict=True))


def test_keys_of_a_frame_choose_partitions(real: quivermq.Client) -> None:
    real.create_topic("frames-with-keys", partitions=4)
    keys = [f"customer-{number}" for number in range(100)]
    frame = pl.DataFrame({"value": [key.encode() for key in keys], "key": keys})
    real.produce_many("frames-with-keys", frame)
    partitions = {}
    for message in real.read("frames-with-keys"):
        assert message.key == message.value
        partitions[message.key] = message.partition
    assert len(partitions) == 100
    assert set(partitions.values()) == {0, 1, 2, 3}
    for key in keys[:5]:
        receipt = real.produce("frames-with-keys", b"again", key=key)
        assert receipt.partition == partitions[key.encode()]


def test_headers_and_timestamps_of_a_frame_are_kept(real: quivermq.Client, topic: str) -> None:
    headers = [[{"key": "trace", "value": b"7"}], [], None]
    frame = pl.DataFrame(
        {"value": VALUES, "headers": headers},
        schema_overrides={"headers": pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))},
    ).with_columns(timestamp=pl.datetime(2026, 1, 2, time_unit="ms", time_zone="UTC"))
    real.produce_many(topic, frame)
    found = list(real.read(topic))
    assert [m.headers for m in found] == [{"trace": b"7"}, {}, {}]
    assert {m.timestamp for m in found} == {1_767_312_000_000}


def test_a_series_is_a_column(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, pl.Series(VALUES), keys=pl.Series(["ada", None, "bob"]))
    real.produce_many(topic, OfferedArray(pa.array(VALUES)), keys=KEYS)
    both = list(zip(VALUES, KEYS, strict=True)) * 2
    assert [(m.value, m.key) for m in real.read(topic)] == both


def test_a_producer_sends_frames(real: quivermq.Client, topic: str) -> None:
    with real.producer() as producer:
        delivery = producer.send_many(topic, pl.DataFrame({"value": VALUES, "key": KEYS}))
        producer.send_many(topic, pl.Series(VALUES))
    assert sum(receipt.count for receipt in delivery.result()) == 3
    assert [m.value for m in real.read(topic)] == VALUES * 2
    assert [m.key for m in real.read(topic)] == [*KEYS, None, None, None]


def test_parts_may_be_frames(real: quivermq.Client, topic: str) -> None:
    urgent = pl.DataFrame({"value": [b"urgent"]})
    real.produce_parts(topic, [(pl.Series([b"plain"]), 0), (urgent, 7)], partition=0)
    assert [(m.value, m.priority) for m in real.read(topic)] == [(b"plain", 0), (b"urgent", 7)]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (pl.DataFrame({"price": [1, 2]}), "not 'price'"),
        (pl.DataFrame({"value": [1, 2]}), "neither binary nor string"),
        (pl.DataFrame({"value": [b"a", None]}), "a value is missing"),
        (pl.Series([1.5]), "neither binary nor string"),
        (Broken(), "Broken gives no Arrow data"),
    ],
)
def test_frames_that_are_no_messages_are_refused_and_nothing_is_stored(
    real: quivermq.Client, topic: str, data: Any, told: str
) -> None:
    with pytest.raises(quivermq.InvalidRequest, match=told):
        real.produce_many(topic, data)
    assert list(real.read(topic)) == []


def test_what_is_taken_in_stays_where_it_is_in_memory() -> None:
    rows = table()
    for offered in (OfferedStream(rows), OfferedArray(rows.to_batches()[0])):
        taken = as_arrow(offered)
        for name in ("value", "key"):
            assert addresses(taken.column(name)) == addresses(rows.column(name))
    values = pa.array(VALUES)
    assert addresses(as_arrow(OfferedArray(values))) == addresses(values)
    numbers = pl.DataFrame({"timestamp": [1, 2, 3]})
    there = numbers["timestamp"].to_numpy(allow_copy=False).ctypes.data
    assert addresses(as_arrow(numbers).column("timestamp")) == [there]


def test_what_is_no_arrow_data_comes_back_as_it_is() -> None:
    for data in (VALUES, tuple(VALUES), None, table(), pa.array(VALUES)):
        assert as_arrow(data) is data
    assert BulkColumns.of(VALUES, KEYS).values is VALUES


def test_a_leased_table_is_arrow_data_that_stays_where_it_is(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, table())
    batch = real.poll_arrow(topic, group="g", wait=10)
    seen = pa.table(batch)
    for name in seen.column_names:
        assert addresses(seen.column(name)) == addresses(batch.table.column(name))
    frame = pl.DataFrame(batch)
    there = frame["offset"].to_numpy(allow_copy=False).ctypes.data
    assert there in addresses(batch.table.column("offset"))
    assert frame["value"].to_list() == VALUES
    batch.ack()


def test_a_reader_is_a_stream_of_arrow_data(real: quivermq.Client, topic: str) -> None:
    for _ in range(3):
        real.produce_many(topic, table())
    frame = pl.DataFrame(real.read(topic))
    assert frame["offset"].to_list() == list(range(9))
    assert frame["value"].to_list() == VALUES * 3
    assert pa.table(real.read(topic, start="latest")).num_rows == 0


def test_a_stream_reads_batches_when_they_are_asked_for(real: quivermq.Client, topic: str) -> None:
    for number in range(3):
        real.produce(topic, b"%d" % number)
    reader = real.read(topic, follow=True)
    stream = pa.RecordBatchReader.from_stream(reader)
    assert stream.read_next_batch().column("value").to_pylist() == [b"0"]
    real.produce(topic, b"stored later")
    rest = [stream.read_next_batch().column("value")[0].as_py() for _ in range(3)]
    assert rest == [b"1", b"2", b"stored later"]
    reader.close()


def test_an_error_of_the_reader_reaches_the_library(real: quivermq.Client, topic: str) -> None:
    reader = real.read(topic, start=5)
    with pytest.raises(Exception, match="offset 5"):
        pl.DataFrame(reader)


def test_the_asyncio_client_takes_and_gives_the_same(broker: BrokerThread) -> None:
    async def main() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.create_topic("capsules-aio")
            await client.produce_many("capsules-aio", pl.DataFrame({"value": VALUES}))
            batch = await client.poll_arrow("capsules-aio", group="g", wait=10)
            assert pl.DataFrame(batch)["value"].to_list() == VALUES
            await batch.ack()

    asyncio.run(main())


DUCKDB = """
import sys, duckdb, quivermq

duckdb.sql("SET enable_progress_bar = false")  # shown where a query takes a while
with quivermq.connect(sys.argv[1]) as client:
    sold = duckdb.sql("SELECT encode('order ' || i) AS value, 'k' || i AS key FROM range(9) t(i)")
    client.produce_many(sys.argv[2], sold)
    reader = client.read(sys.argv[2], start=3)
    print(duckdb.sql("SELECT count(*), min(priority), max(decode(value)) FROM reader").fetchall())
    batch = client.poll_arrow(sys.argv[2], group="g", wait=10)
    print(duckdb.sql("SELECT count(DISTINCT key) FROM batch").fetchall())
    batch.ack()
"""


def test_relations_of_duckdb_go_in_and_queries_read_what_comes_out(
    broker: BrokerThread, topic: str
) -> None:
    # In a process of its own: at the end of one whose garbage is frozen it complains of leaks.
    command = [sys.executable, "-W", "error", "-c", DUCKDB, broker.address, topic]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[(6, 0, 'order 8')]", "[(9,)]"], done.stderr
