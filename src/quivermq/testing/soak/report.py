"""Tells what happened in a soak, as Markdown, from its record.

python -m quivermq.testing.soak.report run/record.json
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from quivermq.testing.soak.record import Sample, SoakRecord, Strike

BUCKETS_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_SEVERAL: Final = "several at once"
_SLICES: Final = 6
_MIB: Final = 1 << 20
_BROKEN: Final = ("lost", "doubled", "reordered", "delivered again after its ack")


class Outage(NamedTuple):
    """The times in which a partition took nothing because of a strike, in seconds."""

    kind: str
    longest_s: float
    """From the strike on, or from the last message taken before it."""
    after_s: float
    """From the end of its faults to the next message that each partition took."""


def outages(record: SoakRecord) -> list[Outage]:
    """One for each strike, by the answers to the probes."""
    found = []
    for strike, following in _with_next(record.strikes):
        answers = [
            record.answers[place]
            for place in record.answers
            if place.startswith(f"round-{strike.round}/")
        ]
        if not answers or not strike.ended_s:
            continue
        kind = strike.kinds[0] if len(strike.kinds) == 1 else _SEVERAL
        end_s = following.began_s if following else float("inf")
        longest_s = max(_longest(times, strike.began_s, end_s) for times in answers)
        after_s = max(_first_after(times, strike.ended_s) for times in answers)
        found.append(Outage(kind, longest_s, after_s))
    return found


def _with_next(strikes: Sequence[Strike]) -> Iterator[tuple[Strike, Strike | None]]:
    for strike, following in zip(strikes, [*strikes[1:], None], strict=True):
        same = following is not None and following.round == strike.round
        yield strike, following if same else None


def _longest(times: Sequence[float], began_s: float, end_s: float) -> float:
    """The longest time without an answer in a window."""
    return max(
        (
            min(after, end_s) - max(before, began_s)
            for before, after in pairwise(times)
            if after > began_s and before < end_s
        ),
        default=0.0,
    )


def _first_after(times: Sequence[float], ended_s: float) -> float:
    return next((at - ended_s for at in times if at >= ended_s), 0.0)


def tell_report(record: SoakRecord) -> str:
    """All of it."""
    parts = [
        _tell_facts(record),
        _tell_counts(record.counts),
        _tell_outages(record),
        _tell_resources(record),
        *(["Event loops were held:", *record.stalls] if record.stalls else []),
    ]
    return "\n\n".join(parts)


def _tell_facts(record: SoakRecord) -> str:
    minutes = (record.ended_s - record.began_s) / 60
    struck = sum(len(strike.kinds) for strike in record.strikes)
    verdict = record.failure or "passed"
    facts = [
        ("brokers", record.nodes),
        ("outcome", verdict),
        ("seed", record.seed),
        ("commit", record.commit),
        ("links", record.links),
        ("disks", record.disks or "as they are"),
        ("minutes", f"{minutes:.1f}"),
        ("rounds judged", record.rounds),
        ("faults", struck),
        ("acknowledged messages", f"{record.counts['messages acknowledged']:,}"),
    ]
    # A judge that finds one ends the run: a run that passed has none.
    if not record.failure:
        facts += [(what, 0) for what in _BROKEN]
    facts.append(("event loop held for longer than its budget", len(record.stalls)))
    return _table(("", ""), facts)


def _tell_counts(counts: Counter[str]) -> str:
    return _table(("operations", "count"), [(name, f"{counts[name]:,}") for name in sorted(counts)])


def _tell_outages(record: SoakRecord) -> str:
    """By kind of fault: how often, how long a partition took nothing, and a histogram."""
    by_kind: dict[str, list[Outage]] = defaultdict(list)
    for outage in outages(record):
        by_kind[outage.kind].append(outage)
    struck = Counter(kind for strike in record.strikes for kind in strike.kinds)
    heads = ("fault", "struck", "alone", "median s", "longest s", "after its end s",
             *(f"< {limit:g}" for limit in BUCKETS_S), f">= {BUCKETS_S[-1]:g}")  # fmt: skip
    rows: list[Sequence[Any]] = []
    for kind in [*sorted(struck), _SEVERAL]:
        found = by_kind.get(kind, [])
        longest = [outage.longest_s for outage in found]
        rows.append(
            (
                kind.replace("_", " "),
                struck.get(kind, len(found)),
                len(found),
                f"{median(longest):.2f}" if found else "",
                f"{max(longest):.2f}" if found else "",
                f"{max(outage.after_s for outage in found):.2f}" if found else "",
                *_histogram(longest),
            )
        )
    return _table(heads, rows)


def _histogram(seconds: Iterable[float]) -> list[int | str]:
    counts = Counter(
        next((n for n, limit in enumerate(BUCKETS_S) if each < limit), len(BUCKETS_S))
        for each in seconds
    )
    return [counts.get(number, "") for number in range(len(BUCKETS_S) + 1)]


def _tell_resources(record: SoakRecord) -> str:
    """The memory and open files of the brokers, in slices of the run."""
    if not record.samples:
        return "No broker was sampled."
    length_s = max(record.ended_s - record.began_s, 1e-9) / _SLICES
    slices: dict[int, list[Sample]] = defaultdict(list)
    for each in record.samples:
        slices[min(int((each.at_s - record.began_s) / length_s), _SLICES - 1)].append(each)
    rows = [
        (
            f"{number * length_s / 60:.0f} to {(number + 1) * length_s / 60:.0f} min",
            f"{median(each.memory_bytes for each in found) / _MIB:.0f}",
            f"{max(each.memory_bytes for each in found) / _MIB:.0f}",
            f"{median(each.sockets for each in found):.0f}",
            max(each.sockets for each in found),
            f"{median(each.logs for each in found):.0f}",
            f"{median(each.log_files / max(each.logs, 1) for each in found):.1f}",
            f"{max(each.log_files / max(each.logs, 1) for each in found):.1f}",
        )
        for number, found in sorted(slices.items())
    ]
    heads = ("time", "median MiB", "largest MiB", "median sockets", "most sockets", "median logs")
    return _table((*heads, "median files a log", "most files a log"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    for path in arguments or sys.argv[1:]:
        print(tell_report(SoakRecord.load(Path(path))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
