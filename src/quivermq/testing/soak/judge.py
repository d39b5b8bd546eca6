"""Judges one round of a soak, from the journals of its users and the logs of all replicas.

    python -m quivermq.testing.soak.judge run/round-7

It runs as a process of its own, after the brokers have stopped and their logs were copied, and
knows nothing else. It writes `verdict.json`; what it finds ends it with an error.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from quivermq.batches import FrameKind, decode_messages
from quivermq.client import DeadLetter, GroupInfo, Message
from quivermq.log import Log, RealDisk
from quivermq.testing import Violation
from quivermq.testing.soak.users import GROUPS
from quivermq.testing.trials.client_trial import stored_batches
from quivermq.testing.trials.consumer_trial import letters_of
from quivermq.testing.trials.group_history import Original
from quivermq.testing.trials.history import ReplicaCopy, TopicPartition
from quivermq.testing.trials.journal import read_journal
from quivermq.testing.trials.observer import ReplicaProgress
from quivermq.testing.trials.sticky_history import StickyHistory
from quivermq.testing.trials.users import Records

VERDICT: Final = "verdict.json"
JOURNALS: Final = "journals"
LOGS: Final = "logs"


class Judge:
    """The histories of a round, and its logs."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = folder
        self._topic = topic
        self._records = Records(groups={})
        self._progress = ReplicaProgress()
        self._figures: list[tuple[str, GroupInfo]] = []
        self._errors: list[str] = []
        self._violations: list[str] = []
        self.counts: Counter[str] = Counter()

    def judge(self) -> None:
        """Raise `Violation` if a promise was broken."""
        for journal in sorted((self._folder / JOURNALS).iterdir()):
            self._replay(journal)
        if self._violations:
            raise Violation("\n".join(self._violations))
        logs = dict(self._open_logs(self._topic))
        copies = [
            ReplicaCopy(node, "stored", place, log.start.next_offset, stored_batches(log))
            for (node, place), log in logs.items()
        ]
        self._records.messages.check(copies)
        self.counts["copies of partitions compared"] = len(copies)
        contents = _contents(logs)
        self.counts["messages stored"] = sum(map(len, contents.values()))
        self._judge_groups(contents)
        ends = {place: len(found) for place, found in contents.items()}
        for sticky in self._records.sticky.values():
            sticky.check(ends, is_drained=True)
        self.counts["calls judged as linearizable"] = self._records.log.check()
        self.counts["looks at replicas"] = self._progress.count

    def _judge_groups(self, contents: dict[TopicPartition, dict[int, Original]]) -> None:
        found = self._dead_letters()
        for group in GROUPS:
            letters = letters_of(found, self._topic, group)
            history = self._records.group(self._topic, group)
            history.check_drained(contents, letters)
            for name, info in self._figures:
                if name == group:
                    history.check_figures(info, contents, letters)
            self.counts["dead letters"] += len(letters)

    # Journals.

    def _replay(self, journal: Path) -> None:
        records = self._records
        recorders: dict[str, Any] = {
            "messages": records.messages,
            "log": records.log,
            "once": records.once,
            "sticky": records.sticky.setdefault(self._topic, StickyHistory()),
            "progress": self._progress,
            "figures": self._figures,
            "errors": self._errors,
            "violations": self._violations,
            **{group: records.group(self._topic, group) for group in GROUPS},
        }
        for recorder, method, arguments in read_journal(journal):
            getattr(recorders[recorder], method)(*arguments)
            self._count(recorder, method, arguments)

    def _count(self, recorder: str, method: str, arguments: tuple[Any, ...]) -> None:
        if recorder == "messages":
            name = {"attempt": "sent", "ack": "acknowledged", "see": "read"}[method]
            self.counts[f"messages {name}"] += len(arguments[2])
        elif method == "record_deliveries":
            self.counts["messages delivered, shared"] += len(arguments[0])
        elif method == "end_calls":
            for call in arguments[1]:
                self.counts[f"settled: {call.act}, {call.fate}"] += 1
        elif (recorder, method) == ("sticky", "give"):
            self.counts["messages delivered, sticky"] += 1
        elif recorder == "once":
            self.counts["messages delivered, at most once"] += 1
        elif recorder == "errors":
            self.counts["errors after all retries"] += 1

    # Logs.

    def _open_logs(self, topic: str) -> Iterator[tuple[tuple[int, TopicPartition], Log]]:
        for node in sorted((self._folder / LOGS).iterdir()):
            disk = RealDisk(str(node))
            for path in sorted((node / "log" / topic).glob("*")):
                place = TopicPartition(topic, int(path.name))
                yield (int(node.name), place), Log.open(disk, f"log/{topic}/{path.name}")

    def _dead_letters(self) -> list[DeadLetter]:
        """Of the replica of each partition that is read first: they were compared by now."""
        found: dict[TopicPartition, list[DeadLetter]] = {}
        for (_, place), log in self._open_logs(f"{self._topic}.dlq"):
            letters = [DeadLetter.of(message) for message in _messages(place, log)]
            before = found.setdefault(place, letters)
            if before != letters:
                raise Violation(f"I1: the replicas of {place} differ")
        return [letter for letters in found.values() for letter in letters]


def _contents(
    logs: dict[tuple[int, TopicPartition], Log],
) -> dict[TopicPartition, dict[int, Original]]:
    """The messages of each partition, by the first of its replicas: all are equal."""
    contents: dict[TopicPartition, dict[int, Original]] = {}
    for (_, place), log in logs.items():
        if place not in contents:
            contents[place] = {
                message.offset: Original(message.key, message.value, dict(message.headers))
                for message in _messages(place, log)
            }
    return contents


def _messages(place: TopicPartition, log: Log) -> Iterator[Message]:
    """All messages of a log, as a client would read them."""
    for frame in log.frames(log.first_index):
        if frame.header.kind == FrameKind.DATA:
            for found in decode_messages(frame):
                yield Message(
                    *place, found.offset, found.key, found.value, found.headers,
                    found.timestamp, found.priority,
                )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    folder, topic = (arguments or sys.argv[1:])[:2]
    judge = Judge(Path(folder), topic)
    failure = ""
    try:
        judge.judge()
    except Violation as error:
        failure = str(error)
    verdict = {"topic": topic, "failure": failure, "counts": judge.counts}
    (Path(folder) / VERDICT).write_text(json.dumps(verdict, indent=1) + "\n")
    return int(bool(failure))


if __name__ == "__main__":
    sys.exit(main())
