"""Verifies a backup: every file, every frame, and that they follow one another without gaps."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from quivermq.backup.folder import BackupFolder, contiguous
from quivermq.backup.frame_file import digest_of_file, read_frames
from quivermq.backup.manifest import (
    BackupFile,
    Manifest,
    MessagesFile,
    PartitionBackup,
    StateSection,
    TopicBackup,
)
from quivermq.backup.throttle import CopyThrottle
from quivermq.batches import Frame, FrameKind
from quivermq.errors import Corrupt


@dataclass(frozen=True, slots=True)
class BackupDamage:
    """Something of a backup that is not as it was written."""

    topic: str
    partition: int
    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: {self.file}: {self.what}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The findings of a verification."""

    manifest: Manifest
    messages: int
    """Messages that were read and are intact."""
    damages: list[BackupDamage] = field(default_factory=list)

    @property
    def usable(self) -> list[str]:
        """Topics of which everything is intact."""
        damaged = {damage.topic for damage in self.damages}
        return [topic.name for topic in self.manifest.topics if topic.name not in damaged]

    def check(self) -> None:
        """Raise `Corrupt`, with what is damaged and what can be used, if anything is damaged."""
        if not self.damages:
            return
        shown = "; ".join(map(str, self.damages[:5]))
        more = f"; and {len(self.damages) - 5} more" if len(self.damages) > 5 else ""
        usable = ", ".join(self.usable) or "none"
        raise Corrupt(
            f"the backup is damaged: {shown}{more}. Topics that are whole, and can be restored "
            f"with --topic: {usable}"
        )


def verify_backup(
    folder: BackupFolder,
    *,
    topics: frozenset[str] | None = None,
    throttle: CopyThrottle | None = None,
) -> VerifyReport:
    """Read all of a backup, or what belongs to these topics."""
    manifest, throttle = folder.loaded(), throttle or CopyThrottle()
    wanted = [topic for topic in manifest.topics if topics is None or topic.name in topics]
    throttle.begin("verifying", sum(topic.messages for topic in wanted))
    verifying = Verifying(folder, manifest, throttle)
    damages = [damage for topic in wanted for damage in verifying.damages_of(topic)]
    return VerifyReport(manifest, throttle.messages, damages)


class Verifying:
    """Reads the files of a backup."""

    def __init__(self, folder: BackupFolder, manifest: Manifest, throttle: CopyThrottle) -> None:
        self._folder = folder
        self._throttle = throttle
        self._states = {
            "groups": (manifest.groups, self._trouble(manifest.groups)),
            "producers": (manifest.producers, self._trouble(manifest.producers)),
        }

    def damages_of(self, topic: TopicBackup) -> Iterator[BackupDamage]:
        for number, partition in enumerate(topic.partitions):
            if not contiguous(partition.files, partition.start, partition.end):
                what = f"its files do not cover {partition.start} to {partition.end}"
                yield BackupDamage(topic.name, number, "backup.json", what)
            for file in partition.files:
                troubles = [self._trouble(file)]
                if self._folder.path(file.name).is_file():
                    troubles.append(self._trouble_within(file))
                if what := ", ".join(filter(None, troubles)):
                    yield BackupDamage(topic.name, number, file.name, what)
            yield from self._damaged_states(topic.name, number, partition)

    def _damaged_states(
        self, topic: str, number: int, partition: PartitionBackup
    ) -> Iterator[BackupDamage]:
        """Of a file of states that is damaged, the sections of other partitions may be whole."""
        sections = {"groups": partition.groups, "producers": partition.producers}
        for kind, section in sections.items():
            file, trouble = self._states[kind]
            if trouble and (inside := self._trouble_of_section(file, section)):
                yield BackupDamage(topic, number, file.name, inside)

    def _trouble_of_section(self, file: BackupFile, section: StateSection) -> str:
        try:
            for frame in self.frames_of(file, section):
                if frame.header.kind != FrameKind.COMMAND:
                    return "it holds something else than states"
        except Corrupt as error:
            return str(error)
        return ""

    def frames_of(self, file: BackupFile, section: StateSection) -> Iterator[Frame]:
        return read_frames(self._folder.path(file.name), section.at, section.bytes)

    def _trouble(self, file: BackupFile) -> str:
        """The fault of a file as a whole; "" if there is none."""
        path = self._folder.path(file.name)
        try:
            size, digest = digest_of_file(path)
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        if size != file.bytes:
            return f"it has {size:,} bytes instead of {file.bytes:,}"
        return "" if digest == file.sha256 else "its checksum does not hold"

    def _trouble_within(self, file: MessagesFile) -> str:
        at = file.first
        try:
            for frame in read_frames(self._folder.path(file.name)):
                header = frame.header
                if header.kind != FrameKind.DATA or header.base_offset != at:
                    return f"{frame} stands where offset {at} comes next"
                at = header.next_offset
                self._throttle.advance(header.count, len(frame))
        except Corrupt as error:
            return f"behind offset {at}: {error}"
        return "" if at == file.end else f"it ends at offset {at} instead of {file.end}"
