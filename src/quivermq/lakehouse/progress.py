"""The offsets up to which a table holds a topic, kept in the table's own state.

A Delta table remembers, for each application that writes to it, a number that changes with a
commit or not at all. Each partition of a topic is such an application, and its number is the offset
behind the last one that the table holds. So rows and offsets change together,
even if a process dies between two steps.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from quivermq.errors import InvalidRequest

TOPIC_PROPERTY: Final = "quiver.topic"
TOPIC_ID_PROPERTY: Final = "quiver.topicId"
ARCHIVE_PROPERTY: Final = "quiver.archive"
OFFSETS_NOTE: Final = "quiver.offsets"


def archive_group(table_id: str) -> str:
    """The consumer group under which an archive commits its offsets to brokers."""
    return f"_archive.{table_id}"


def end_key(topic: str, partition: int) -> str:
    """Names the offset behind the last one that a table holds."""
    return f"quiver:{topic}:{partition}"


def start_key(topic: str, partition: int) -> str:
    """Names the offset from which on a table has no gap."""
    return f"quiver-start:{topic}:{partition}"


def recreated_error(topic: str, root: object) -> InvalidRequest:
    """The error for an archive whose topic was deleted and created again."""
    return InvalidRequest(
        f"topic {topic!r} was deleted and created again since the table {root} was begun: "
        "their offsets are unrelated. Archive it to another folder"
    )


def offsets_by_key(find: Callable[[str], int | None], key: Callable[[int], str]) -> dict[int, int]:
    """Offsets by partition: every commit names all partitions, so the first gap is the end."""
    offsets: dict[int, int] = {}
    while (found := find(key(len(offsets)))) is not None:
        offsets[len(offsets)] = found
    return offsets


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """The offsets that one commit of an archive adds: [start, end) of each partition."""

    topic: str
    starts: dict[int, int]
    ends: dict[int, int]
    firsts: dict[int, int]
    """From where on the table has no gap."""
    held: dict[int, int] = field(default_factory=dict)
    """By partition that the table knew, its end when the range was planned."""

    def __post_init__(self) -> None:
        partitions = list(range(len(self.ends)))
        if not (sorted(self.starts) == sorted(self.ends) == sorted(self.firsts) == partitions):
            raise InvalidRequest(f"an archive's range must name each partition once: {self}")
        if any(not 0 <= self.starts[number] <= self.ends[number] for number in partitions):
            raise InvalidRequest(f"an archive's range goes backwards: {self}")

    @property
    def is_empty(self) -> bool:
        return self.starts == self.ends

    @property
    def count(self) -> int:
        return sum(self.ends.values()) - sum(self.starts.values())

    @property
    def progress(self) -> dict[str, int]:
        """The keys and offsets that the commit records in the table."""
        return self.progress_from({})

    def progress_from(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Like `progress`, but never below `ends`, which the table has reached already."""
        found = {
            end_key(self.topic, number): max(end, ends.get(number, 0))
            for number, end in self.ends.items()
        }
        for number, first in self.firsts.items():
            found[start_key(self.topic, number)] = first
        return found

    def note(self) -> dict[str, str]:
        """The end offsets as a note in the table's history."""
        plain = {str(number): end for number, end in sorted(self.ends.items())}
        return {OFFSETS_NOTE: json.dumps({self.topic: plain})}

    def encode(self) -> str:
        return json.dumps(
            {
                "topic": self.topic,
                "starts": _to_list(self.starts),
                "ends": _to_list(self.ends),
                "firsts": _to_list(self.firsts),
                "held": _to_list(self.held),
            }
        )

    @classmethod
    def decode(cls, text: str) -> "ArchiveRange":
        try:
            found = json.loads(text)
            return cls(
                found["topic"],
                dict(enumerate(found["starts"])),
                dict(enumerate(found["ends"])),
                dict(enumerate(found["firsts"])),
                dict(enumerate(found["held"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{text!r} is no range of an archive: {error}") from None


def _to_list(offsets: Mapping[int, int]) -> list[int]:
    return [offsets[number] for number in sorted(offsets)]
