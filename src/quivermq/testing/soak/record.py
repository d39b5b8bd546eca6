"""The record of a soak: faults, answers of partitions, what brokers held, what was counted."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from quivermq.testing.cluster import Node


@dataclass
class Strike:
    """Faults that struck together, by the steady clock."""

    kinds: list[str]
    round: int
    began_s: float
    ended_s: float = 0.0


class Sample(NamedTuple):
    """The memory, sockets and files of one broker at one moment."""

    at_s: float
    node: int
    process: int
    memory_bytes: int
    sockets: int
    log_files: int
    logs: int
    """Logs of which at least one file is open."""


def sample(node: Node) -> Sample:
    """Look at the process of a broker."""
    open_files = [str(entry.readlink()) for entry in Path(f"/proc/{node.pid}/fd").iterdir()]
    logs = [str(Path(name).parent) for name in open_files if "/log/" in name]
    return Sample(
        time.monotonic(),
        node.id,
        node.pid,
        node.memory_bytes(),
        sum(name.startswith("socket:") for name in open_files),
        len(logs),
        len(set(logs)),
    )


@dataclass
class SoakRecord:
    """Everything that a report is made of."""

    nodes: int
    seed: int
    links: str
    disks: str
    commit: str = ""
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    rounds: int = 0
    strikes: list[Strike] = field(default_factory=list)
    answers: dict[str, list[float]] = field(default_factory=dict)
    """By round and partition: when the produces of its probe were acknowledged."""
    samples: list[Sample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    stalls: list[str] = field(default_factory=list)
    failure: str = ""

    def save(self, path: Path) -> None:
        strikes = [asdict(strike) for strike in self.strikes]
        path.write_text(json.dumps({**vars(self), "strikes": strikes}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """A record as it was saved."""
        found: dict[str, Any] = json.loads(path.read_text())
        found["strikes"] = [Strike(**strike) for strike in found["strikes"]]
        found["counts"] = Counter(found["counts"])
        found["samples"] = [Sample(*each) for each in found["samples"]]
        return cls(**found)
