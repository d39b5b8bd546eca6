"""The manifest of a backup: which files it consists of, and what they hold.

Written last, in two copies: a file that no manifest names is not part of the backup.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final

from quivermq.errors import Corrupt, UnsupportedFormat

KIND: Final = "quivermq backup"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup; it never changes."""

    name: str
    """Its path below the folder, with `/`."""
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class MessagesFile(BackupFile):
    """Batches of a partition, one behind the other."""

    first: int
    """The offset of its first message."""
    end: int
    """Behind its last one."""


@dataclass(frozen=True, slots=True)
class StateSection:
    """A part of a file of states."""

    at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionBackup:
    """A partition: messages from `start` to before `end`, and its state."""

    start: int
    end: int
    files: tuple[MessagesFile, ...]
    """In order. The first may begin before `start`: that part is not restored."""
    groups: StateSection
    producers: StateSection


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """A topic, and its partitions by number."""

    name: str
    id: str
    partitions: tuple[PartitionBackup, ...]

    @property
    def messages(self) -> int:
        return sum(partition.end - partition.start for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup."""

    id: str
    """Random: of all backups in this folder."""
    serial: int
    """Counts them."""
    began_ms: int
    finished_ms: int
    release: str
    """The release that took it."""
    catalog: dict[str, Any] = field(hash=False)
    """As a broker exported it: records of topics, users, the next producer id."""
    groups: BackupFile
    producers: BackupFile
    topics: tuple[TopicBackup, ...]

    @property
    def name(self) -> str:
        """By this name brokers remember what was restored from it."""
        return f"{self.id}.{self.serial}"

    @property
    def cluster_id(self) -> str:
        return str(self.catalog["cluster_id"])

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics)

    def files(self) -> Iterator[BackupFile]:
        """Every file that it consists of."""
        yield self.groups
        yield self.producers
        for topic in self.topics:
            for partition in topic.partitions:
                yield from partition.files

    def topic(self, name: str) -> TopicBackup | None:
        return next((topic for topic in self.topics if topic.name == name), None)

    def partition(self, topic_id: str, number: int) -> PartitionBackup | None:
        """A partition by the id of its topic, which may have had another name."""
        for topic in self.topics:
            if topic.id == topic_id and number < len(topic.partitions):
                return topic.partitions[number]
        return None

    def encode(self) -> bytes:
        """As it is written."""
        content = asdict(self)
        document = {"kind": KIND, "version": VERSION, "sha256": _digest(content)}
        return json.dumps({**document, "content": content}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Raises `Corrupt` unless every byte is as it was written, `UnsupportedFormat` for one of
        another release."""
        try:
            document = json.loads(data)
            kind, version, content = document["kind"], document["version"], document["content"]
            digest = document["sha256"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Corrupt(f"this is no manifest: {error}") from error
        if kind != KIND or type(version) is not int:
            raise Corrupt(f"this is no manifest of a backup: {kind!r}")
        if version != VERSION:
            raise UnsupportedFormat(
                f"the backup has format {version}, this release reads {VERSION}: use another one"
            )
        if digest != _digest(content):
            raise Corrupt("its checksum does not hold")
        return cls(
            **{
                **content,
                "groups": BackupFile(**content["groups"]),
                "producers": BackupFile(**content["producers"]),
                "topics": tuple(map(_topic, content["topics"])),
            }
        )


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _topic(value: dict[str, Any]) -> TopicBackup:
    partitions = tuple(
        PartitionBackup(
            **{
                **one,
                "files": tuple(MessagesFile(**each) for each in one["files"]),
                "groups": StateSection(**one["groups"]),
                "producers": StateSection(**one["producers"]),
            }
        )
        for one in value["partitions"]
    )
    return TopicBackup(value["name"], value["id"], partitions)
