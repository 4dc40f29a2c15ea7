"""Verify backups: read and compare every byte that they contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.storage.backup.backup_progress import BackupProgress, ignore_progress
from raymq.storage.backup.backup_reader import ExtentReader, read_catalog, select_backup
from raymq.storage.backup.backup_target import BackupTarget
from raymq.storage.errors import InvalidInput, StoreCorrupt


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that cannot be restored from a backup.

    `reason` says why, and `object` names the damaged object or manifest of the target.
    """

    backup: str
    file: str
    object: str
    reason: str


@dataclass(slots=True)
class BackupVerifyReport:
    """How much was checked, and which files are bad."""

    backups: int = 0
    files: int = 0
    bytes: int = 0
    bad: list[BadFile] = field(default_factory=list)


def verify_backups(
    target: BackupTarget, name: str | None = None, progress: Callable[[BackupProgress], None] = ignore_progress
) -> BackupVerifyReport:
    """Read one backup or all of them, and compare every byte. Change nothing.

    Raises:
        InvalidInput: there is no such backup.
        BackupFailed: the target cannot be read.
    """
    catalog = read_catalog(target)
    report = BackupVerifyReport()
    if name is None:
        manifests = catalog.backups
        report.bad += [BadFile("", "", error.file, error.reason) for error in catalog.broken]
        report.bad += [BadFile("", "", error.what, str(error)) for error in catalog.newer]
        if not (manifests or catalog.broken or catalog.newer):
            raise InvalidInput("target", "a place that has backups", target.where)
    else:
        manifests = (select_backup(catalog, target.where, name),)
    reader = ExtentReader(target)
    #: The result of each extent, so that shared bytes are checked once; None: sound.
    seen: dict[tuple[str, int, int, str], StoreCorrupt | None] = {}
    total = sum(extent.length for extent in {extent for each in manifests for extent in each.extents()})
    for manifest in manifests:
        report.backups += 1
        for file in manifest.files:
            report.files += 1
            for extent in file.extents:
                if extent not in seen:
                    seen[extent] = None
                    try:
                        reader.read(extent)
                    except StoreCorrupt as error:
                        seen[extent] = error
                    report.bytes += extent.length
                    progress(BackupProgress(file.path, report.bytes, total))
                found = seen[extent]
                if found is not None:
                    report.bad.append(BadFile(manifest.name, file.path, found.file, found.reason))
                    break
    return report
