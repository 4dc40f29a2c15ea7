"""Former backups go, and what only they had."""

from __future__ import annotations

from raymq.storage.backup.reading import read_catalog
from raymq.storage.backup.target import Target
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint


def prune(target: Target, keep: int) -> list[str]:
    """Let all backups go but the newest `keep`; their names.

    A backup goes before the bytes that it names, so that one that is there is whole. Where a manifest cannot be read no
    bytes go: they might be its. What was begun and never became a backup goes as well: nobody else may be at it.

    Raises:
        InvalidInput: none would be kept. BackupFailed.
    """
    check_keep(keep)
    catalog = read_catalog(target)
    gone = [each.name for each in catalog.backups[:-keep]]
    for name in gone:
        target.remove_manifest(name)
    if not (catalog.broken or catalog.newer):
        named = {extent.object for each in catalog.backups[-keep:] for extent in each.extents()}
        for name in target.objects().keys() - named:
            failpoint("backup.before_object_goes")
            target.remove_object(name)
    target.sweep()
    return gone


def check_keep(keep: int) -> int:
    """InvalidInput unless at least one backup is kept."""
    if keep < 1:
        raise InvalidInput("keep", "at least 1", keep)
    return keep
