"""Remove old backups, and the objects that only they use."""

from __future__ import annotations

from raymq.storage.backup.backup_reader import read_catalog
from raymq.storage.backup.backup_target import BackupTarget
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint


def prune_backups(target: BackupTarget, keep: int) -> list[str]:
    """Remove all backups except the newest `keep`, and return their names.

    A backup's manifest is removed before its objects, so that each remaining backup is complete. If a manifest cannot
    be read, no object is removed, because it may use any object. Leftovers of unfinished backups are removed as well,
    so no other backup may be in progress.

    Raises:
        InvalidInput: `keep` is below 1.
        BackupFailed: the target cannot be read or written.
    """
    check_keep(keep)
    catalog = read_catalog(target)
    removed = [each.name for each in catalog.backups[:-keep]]
    for name in removed:
        target.remove_manifest(name)
    if not (catalog.broken or catalog.newer):
        named = {extent.object for each in catalog.backups[-keep:] for extent in each.extents()}
        for name in target.objects().keys() - named:
            failpoint("backup.before_object_removed")
            target.remove_object(name)
    target.remove_leftovers()
    return removed


def check_keep(keep: int) -> int:
    """Raise InvalidInput unless at least one backup is kept; return `keep`."""
    if keep < 1:
        raise InvalidInput("keep", "at least 1", keep)
    return keep
