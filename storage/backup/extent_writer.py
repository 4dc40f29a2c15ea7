"""Write extents to a target, and find those that the target has already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from raymq.storage.backup.backup_manifest import Extent, Manifest, StoredFile
from raymq.storage.backup.backup_target import BackupTarget

#: Small extents are packed into objects of at most this size.
_PACK_BYTES: Final = 16 << 20


class PlacedExtent:
    """An extent whose object is known at the latest after `ExtentWriter.finish`."""

    __slots__ = ("extent",)

    def __init__(self, extent: Extent) -> None:
        self.extent = extent


class ExtentWriter:
    """Writes extents into the objects of a target. One thread.

    Attributes:
        copied_bytes: how many bytes were written.
    """

    def __init__(self, target: BackupTarget, manifests: Iterable[Manifest]) -> None:
        """Collect the target's objects and the extents of `manifests`.

        `manifests` are those of the earlier backups, the oldest first.
        """
        self.copied_bytes = 0
        self._target = target
        self._objects = target.objects()
        self._known = {each.digest: each for manifest in manifests for each in manifest.extents() if self._has(each)}
        self._pack = bytearray()
        self._packed: list[PlacedExtent] = []

    def _has(self, extent: Extent) -> bool:
        return self._objects.get(extent.object, 0) >= extent.at + extent.length

    def has(self, file: StoredFile) -> bool:
        """Return True if the target has all of a file, judging by object sizes."""
        return all(map(self._has, file.extents))

    def add(self, content: bytes | memoryview) -> PlacedExtent:
        """Store bytes in the target, at the latest with `finish`, and return their extent.

        Known bytes are not stored again; bytes of 16 MiB or more become an object of their own.
        """
        digest = hashlib.sha256(content).hexdigest()
        known = self._known.get(digest)
        if known is not None:
            return PlacedExtent(known)
        extent = Extent(digest, 0, len(content), digest)
        if len(content) >= _PACK_BYTES:
            self._write(digest, content)
            self._known[digest] = extent
            return PlacedExtent(extent)
        if len(self._pack) + len(content) > _PACK_BYTES:
            self.finish()
        placed = PlacedExtent(extent._replace(at=len(self._pack)))
        self._pack += content
        self._packed.append(placed)
        return placed

    def finish(self) -> None:
        """Write the packed extents as one object."""
        if self._packed:
            name = hashlib.sha256(self._pack).hexdigest()
            self._write(name, bytes(self._pack))
            for placed in self._packed:
                placed.extent = placed.extent._replace(object=name)
                self._known[placed.extent.digest] = placed.extent
        self._pack.clear()
        self._packed.clear()

    def _write(self, name: str, content: bytes | memoryview) -> None:
        if self._objects.get(name) != len(content):
            self._target.write_object(name, content)
            self._objects[name] = len(content)
            self.copied_bytes += len(content)
