"""Read the bytes of backups, and check each of them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raymq.storage.backup.backup_manifest import Extent, Manifest, decode
from raymq.storage.backup.backup_target import BackupTarget
from raymq.storage.errors import FormatTooNew, InvalidInput, StoreCorrupt

#: How many objects are kept in memory, because many files share one.
_KEPT_OBJECTS: Final = 3


@dataclass(frozen=True, slots=True)
class BackupCatalog:
    """The backups of a target, sorted from the oldest to the newest.

    `broken` are the errors of unreadable manifests, `newer` those of manifests that a newer RayMQ wrote.
    """

    backups: tuple[Manifest, ...]
    broken: tuple[StoreCorrupt, ...]
    newer: tuple[FormatTooNew, ...] = ()


def read_catalog(target: BackupTarget) -> BackupCatalog:
    """Read all manifests of a target. Raise BackupFailed if it cannot be read."""
    found: list[Manifest] = []
    broken: list[StoreCorrupt] = []
    newer: list[FormatTooNew] = []
    for name in target.names():
        where = f"{target.where}/backups/{name}.json"
        try:
            manifest = decode(where, target.read_manifest(name))
            if manifest.name != name:
                raise StoreCorrupt(where, 0, f"it is the manifest of {manifest.name}")
            found.append(manifest)
        except StoreCorrupt as error:
            broken.append(error)
        except FormatTooNew as error:
            newer.append(error)
        except FileNotFoundError:  # it has just been removed
            continue
    found.sort(key=lambda each: (each.made_at_ms, each.name))
    return BackupCatalog(tuple(found), tuple(broken), tuple(newer))


def select_backup(catalog: BackupCatalog, where: str, name: str | None) -> Manifest:
    """Return the backup of that name; None: the newest one.

    Raises:
        InvalidInput: there is no such backup.
        StoreCorrupt: it is damaged, or it is unknown which one is the newest.
        FormatTooNew: a newer RayMQ wrote it; without a name, it wrote any of the backups, which is then the newest.
    """
    for newer in catalog.newer:
        if name is None or newer.what.endswith(f"/{name}.json"):
            raise newer
    for error in catalog.broken:
        if name is None:
            remedy = (
                "the damaged backup may be the newest one: choose a backup with --at, or remove the damaged manifest"
            )
            raise StoreCorrupt(error.file, error.offset, error.reason, remedy=remedy) from error
        if error.file.endswith(f"/{name}.json"):
            raise error
    found = [each for each in catalog.backups if name in (None, each.name)]
    if not found:
        raise InvalidInput("backup", _one_of(catalog.backups, where), name)
    return found[-1]


def _one_of(backups: Sequence[Manifest], where: str) -> str:
    if not backups:
        return f"a backup in {where}, which has none"
    return f"a backup in {where}: {', '.join(each.name for each in backups[-10:])}"


class ExtentReader:
    """Reads extents of one target. One thread."""

    def __init__(self, target: BackupTarget) -> None:
        self._target = target
        self._objects: OrderedDict[str, bytes | StoreCorrupt] = OrderedDict()

    def read(self, extent: Extent) -> memoryview:
        """Return the bytes of an extent.

        Raise StoreCorrupt if they are not the bytes that were backed up, BackupFailed if the target cannot be read.
        """
        found = self._objects.get(extent.object)
        if found is None:
            found = self._objects[extent.object] = self._object(extent.object)
            while len(self._objects) > _KEPT_OBJECTS:
                self._objects.popitem(last=False)
        if isinstance(found, StoreCorrupt):
            raise found
        content = memoryview(found)[extent.at : extent.at + extent.length]
        is_all = len(content) == len(found) and extent.digest == extent.object
        if len(content) != extent.length or not (is_all or hashlib.sha256(content).hexdigest() == extent.digest):
            raise StoreCorrupt(
                self._where(extent.object), extent.at, "the bytes do not match the checksum in the manifest"
            )
        return content

    def _object(self, name: str) -> bytes | StoreCorrupt:
        where = self._where(name)
        try:
            content = self._target.read_object(name)
        except FileNotFoundError:
            return StoreCorrupt(where, 0, "the file is missing")
        if hashlib.sha256(content).hexdigest() != name:
            return StoreCorrupt(where, 0, f"its {len(content)} bytes do not match the checksum in its name")
        return content

    def _where(self, name: str) -> str:
        return f"{self._target.where}/objects/{name[:2]}/{name}"
