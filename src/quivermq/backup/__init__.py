"""Backups of a running cluster in a folder: taken, verified, restored.

Uses the client as any admin would; must never know brokers. `docs/backup.md` says what a backup
holds and promises, `docs/formats.md` its files.
"""

from quivermq.backup.folder import BackupFolder
from quivermq.backup.manifest import Manifest, PartitionBackup, TopicBackup
from quivermq.backup.restore import RestoreOptions, RestoreReport, restore_backup
from quivermq.backup.take import BackupReport, take_backup
from quivermq.backup.throttle import CopyProgress, CopyThrottle
from quivermq.backup.verify import BackupDamage, VerifyReport, verify_backup

__all__ = [
    "BackupDamage",
    "BackupFolder",
    "BackupReport",
    "CopyProgress",
    "CopyThrottle",
    "Manifest",
    "PartitionBackup",
    "RestoreOptions",
    "RestoreReport",
    "TopicBackup",
    "VerifyReport",
    "restore_backup",
    "take_backup",
    "verify_backup",
]
