"""Batches: what framing costs on top of bare pyarrow. `python -m benchmarks.batches [--json]`.

"Ours" does everything that a client does: columns, checks, Arrow, CRC-32C and header; or header,
both checksums, the check of the envelope, full validation. "Bare" is the shortest pyarrow code for
the same data, which checks nothing; where a reference has a checksum too, its name says so.

Repeats are interleaved: each round runs every function, so a slow moment of the machine meets all
of them. A figure is the fastest round, per call. The data is warm in the cache, in one thread.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter

import pyarrow as pa
from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from quivermq.batches import (
    Frame,
    decode_batch,
    decode_messages,
    encode_batch,
    schema_of,
)

MESSAGES, MESSAGE_BYTES = 1_000, 100
VALUES = [os.urandom(MESSAGE_BYTES) for _ in range(MESSAGES)]
SCHEMA = schema_of(0)

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table: two functions of `WORK`, and how far apart they may be."""

    title: str
    ours: str
    reference: str
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    title: str
    ours_us: float
    reference: str
    reference_us: float
    ratio: float
    target: float | None

    @property
    def settlement(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.ratio <= self.target else "MISSED"


def bare_encode(values: list[bytes]) -> pa.Buffer:
    column = pa.array(values, pa.binary())
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA).serialize()


def bare_read(body: bytes) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)


def bare_encode_with_crc(values: list[bytes]) -> tuple[pa.Buffer, int]:
    body = bare_encode(values)
    return body, crc32c(body)


def bare_read_with_crc(body: bytes) -> tuple[int, pa.RecordBatch]:
    return crc32c(body), bare_read(body)


def bare_tuples(body: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(bare_read(body).column(0).to_pylist()))


def work() -> dict[str, Work]:
    received = bytes(encode_batch(VALUES))
    body = bytes(Frame.parse(received).body)
    one = VALUES[:1]
    one_received = bytes(encode_batch(one))
    one_body = bytes(Frame.parse(one_received).body)
    return {
        "encode": lambda: encode_batch(VALUES),
        "bare encode": lambda: bare_encode(VALUES),
        "bare encode + crc": lambda: bare_encode_with_crc(VALUES),
        "encode one": lambda: encode_batch(one),
        "bare encode one": lambda: bare_encode(one),
        "decode one": lambda: decode_batch(Frame.parse(one_received)),
        "bare read one": lambda: bare_read(one_body),
        "decode": lambda: decode_batch(Frame.parse(received)),
        "bare read": lambda: bare_read(body),
        "bare read + crc": lambda: bare_read_with_crc(body),
        "decode to list": lambda: decode_batch(Frame.parse(received)).column(0).to_pylist(),
        "bare read to list": lambda: bare_read(body).column(0).to_pylist(),
        "bare read + crc to list": lambda: bare_read_with_crc(body)[1].column(0).to_pylist(),
        "decode to messages": lambda: decode_messages(Frame.parse(received)),
        "bare read to pairs": lambda: bare_tuples(body),
    }


COMPARISONS = [
    Comparison("encode from a list", "encode", "bare encode", 1.5),
    Comparison("encode from a list", "encode", "bare encode + crc"),
    Comparison("encode one message", "encode one", "bare encode one"),
    Comparison("parse + decode to Arrow", "decode", "bare read"),
    Comparison("parse + decode to Arrow", "decode", "bare read + crc"),
    Comparison("parse + decode one message", "decode one", "bare read one"),
    Comparison("parse + decode to a list", "decode to list", "bare read to list", 1.5),
    Comparison("parse + decode to a list", "decode to list", "bare read + crc to list"),
    Comparison("parse + decode to Message", "decode to messages", "bare read to pairs"),
]


def measure(functions: dict[str, Work], rounds: int) -> dict[str, float]:
    """Seconds per call of each function: the fastest of `rounds` interleaved rounds."""
    calls = {name: calls_of_a_round(function) for name, function in functions.items()}
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            best[name] = min(best[name], timed(function, calls[name]))
    return best


def calls_of_a_round(function: Work) -> int:
    """Enough calls to last about a millisecond: long for the clock, short for the scheduler."""
    return max(1, round(0.001 / timed(function, 20)))


def timed(function: Work, calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        function()
    return (perf_counter() - start) / calls


def results(rounds: int) -> list[Result]:
    seconds = measure(work(), rounds)
    return [
        Result(
            line.title,
            seconds[line.ours] * 1e6,
            line.reference,
            seconds[line.reference] * 1e6,
            seconds[line.ours] / seconds[line.reference],
            line.target,
        )
        for line in COMPARISONS
    ]


def show(lines: list[Result], rounds: int) -> None:
    table = Table(
        title=f"batches: {MESSAGES:,} messages of {MESSAGE_BYTES} B (or one, where it says so)",
        caption=f"fastest of {rounds} interleaved rounds, microseconds per call; {machine()}",
    )
    for name in ("what", "ours", "reference", "its time", "ratio", "target", ""):
        table.add_column(name, justify="left" if name in {"what", "reference"} else "right")
    for line in lines:
        target = "" if line.target is None else f"≤ {line.target}"
        table.add_row(
            line.title,
            f"{line.ours_us:.1f}",
            line.reference,
            f"{line.reference_us:.1f}",
            f"{line.ratio:.2f}",
            target,
            line.settlement,
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def machine() -> str:
    return f"Python {platform.python_version()}, pyarrow {pa.__version__}, {platform.machine()}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--rounds", type=int, default=300)
    # Others run beside this one under `python -m benchmarks`, with options of their own.
    options, _ = arguments.parse_known_args()
    lines = results(options.rounds)
    if options.json:
        counters = [asdict(line) | {"verdict": line.settlement} for line in lines]
        print(json.dumps({"benchmark": "batches", "machine": machine(), "results": counters}))
    else:
        show(lines, options.rounds)


if __name__ == "__main__":
    main()
