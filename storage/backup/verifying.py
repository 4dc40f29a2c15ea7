"""Looks through backups: every byte of what they name is read and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.storage.backup.progress import BackupProgress, ignore
from raymq.storage.backup.reading import ExtentReader, chosen, read_catalog
from raymq.storage.backup.target import Target
from raymq.storage.errors import InvalidInput, StoreCorrupt


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that cannot be restored from a backup: why, and what of the target is at fault."""

    backup: str
    file: str
    object: str
    reason: str


@dataclass(slots=True)
class BackupVerifyReport:
    """How much was looked at, and what was found."""

    backups: int = 0
    files: int = 0
    bytes: int = 0
    bad: list[BadFile] = field(default_factory=list)


def verify_backups(
    target: Target, name: str | None = None, progress: Callable[[BackupProgress], None] = ignore
) -> BackupVerifyReport:
    """Read all of the backups, or of one of them, and compare it with what was written. Changes nothing.

    Raises:
        InvalidInput: there is no such backup. BackupFailed: the target cannot be read.
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
        manifests = (chosen(catalog, target.where, name),)
    reader = ExtentReader(target)
    #: Equal bytes are looked at once, whoever has them: None is sound.
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
