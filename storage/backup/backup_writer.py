"""Make a backup: copy the bytes that the target lacks, and write the manifest last."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from raymq.storage.backup.backup_manifest import EXTENT_BYTES, FileFingerprint, Manifest, StoredFile, check_name
from raymq.storage.backup.backup_progress import BackupProgress, ignore_progress
from raymq.storage.backup.backup_reader import read_catalog
from raymq.storage.backup.backup_retention import check_keep, prune_backups
from raymq.storage.backup.backup_source import BackupSource
from raymq.storage.backup.backup_state import read_part
from raymq.storage.backup.backup_target import BackupTarget
from raymq.storage.backup.extent_writer import ExtentWriter, PlacedExtent
from raymq.storage.clock import wall_ms
from raymq.storage.errors import BackupFailed, InvalidInput, StateMismatch
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import file_name


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup.

    Attributes:
        files, bytes: the number of its files and of their stored bytes.
        copied_bytes: how many of these bytes were not in the target before.
        gone: the names of old backups that were removed.
    """

    name: str
    log_begin: int
    log_end: int
    files: int
    bytes: int
    copied_bytes: int
    gone: list[str] = field(default_factory=list)


def create_backup(
    source: BackupSource,
    target: BackupTarget,
    *,
    name: str | None = None,
    keep: int | None = None,
    progress: Callable[[BackupProgress], None] = ignore_progress,
    now_ms: Callable[[], int] = wall_ms,
) -> BackupReport:
    """Make a backup; it is on the target's disk when the call returns.

    A crash meanwhile leaves the earlier backups unchanged.

    Args:
        name: the name of the backup; by default the current time.
        keep: remove old backups until there are so many. None: keep all.

    Raises:
        InvalidInput: the target has another broker's backups, or one of that name; or the target lies in the directory
            itself.
        BackupFailed, StoreFailed: no backup was made.
        FormatTooNew: a newer RayMQ has made backups there, or has written in the directory; no backup was made.
    """
    made_at_ms = now_ms()
    moment = datetime.fromtimestamp(made_at_ms / 1000, UTC)
    name = check_name(name or f"{moment:%Y-%m-%dT%H%M%S}.{made_at_ms % 1000:03}Z")
    if keep is not None:
        check_keep(keep)
    if target.is_within(source.directory):
        raise InvalidInput("target", f"a place outside of {source.directory}", target.where)
    catalog = read_catalog(target)
    if catalog.newer:  # only the newer RayMQ can decide which objects they share and which may be removed
        raise catalog.newer[0]
    before = catalog.backups
    if before:  # the newest backup has to have the highest time, even after the clock was set back
        made_at_ms = max(made_at_ms, before[-1].made_at_ms + 1)
    if name in target.names():
        raise InvalidInput("backup", f"a name that is not in use in {target.where}", name)
    for each in before:
        if (each.broker.name, each.broker.cluster) != (source.broker.name, source.broker.cluster):
            theirs, ours = (f"{broker.name} of {broker.cluster}" for broker in (each.broker, source.broker))
            raise InvalidInput(
                "target", f"a place for backups of {ours} only; it has backups of {theirs}", target.where
            )
    making = _BackupWriter(source, ExtentWriter(target, before), before, progress)
    state = making.copy_state()
    failpoint("backup.after_state")
    log = making.copy_log()
    files = (*log, *state)
    manifest = Manifest(name, made_at_ms, source.broker, source.log_begin, source.log_end, (), files, source.format)
    source.check()
    failpoint("backup.before_manifest")
    target.write_manifest(name, manifest.encode())
    failpoint("backup.after_manifest")
    removed = [] if keep is None else prune_backups(target, keep)
    return BackupReport(
        name,
        manifest.log_begin,
        manifest.log_end,
        len(manifest.files),
        manifest.stored_bytes,
        making.copied.copied_bytes,
        removed,
    )


class _BackupWriter:
    """One backup in progress."""

    def __init__(
        self,
        source: BackupSource,
        copied: ExtentWriter,
        before: Sequence[Manifest],
        progress: Callable[[BackupProgress], None],
    ) -> None:
        self.copied = copied
        self._source = source
        self._progress = progress
        self._done = 0
        self._total = source.state_bytes + source.log_end - source.log_begin
        #: Log files of the newest backup that were complete then, so that an equal fingerprint saves reading them.
        self._marked = {file.path: file for file in before[-1].files if file.mark is not None} if before else {}

    def _notify(self, path: str, more: int) -> None:
        self._done += more
        self._progress(BackupProgress(path, self._done, max(self._total, self._done), self.copied.copied_bytes))

    def copy_state(self) -> list[StoredFile]:
        """Copy the state, and return its files."""
        files: dict[str, list[PlacedExtent]] = {}
        try:
            for path, _, content in map(read_part, self._source.parts()):
                placed = files.setdefault(path, [])
                if content:
                    placed.append(self.copied.add(content))
                self._notify(path, len(content))
        except StateMismatch as error:
            raise BackupFailed(f"the broker sent malformed state: {error}") from error
        self.copied.finish()
        stored = {path: tuple(each.extent for each in placed) for path, placed in files.items()}
        return [StoredFile(path, sum(extent.length for extent in extents), extents) for path, extents in stored.items()]

    def copy_log(self) -> list[StoredFile]:
        """Copy the log's files from the oldest on, and release each copied file."""
        source, found = self._source, []
        start = source.log_begin
        while start < source.log_end:
            source.hold(start)
            found.append(self._log_file(start, min(source.file_bytes, source.log_end - start)))
            failpoint("backup.after_log_file")
            start += source.file_bytes
        self.copied.finish()
        return [
            StoredFile(path, size, tuple(each.extent for each in placed), mark) for path, size, placed, mark in found
        ]

    def _log_file(self, start: int, length: int) -> tuple[str, int, list[PlacedExtent], FileFingerprint | None]:
        path, size = f"commitlog/{file_name(start)}", self._source.file_bytes
        full = self._source.directory / path
        try:
            fd = fileutil.open_to_read(full)
        except FileNotFoundError:
            reason = "retention has removed it: is the disk over 85 % full?"
            raise BackupFailed(f"{full} is gone: {reason}", remedy="make room, and make the backup again") from None
        try:
            mark = _mark(fd) if length == size else None
            known = self._marked.get(path)
            if known is not None and known.mark == mark and self.copied.has(known):
                self._notify(path, length)
                return path, size, [PlacedExtent(extent) for extent in known.extents], mark
            placed = []
            for at in range(0, length, EXTENT_BYTES):
                content = _read(fd, min(EXTENT_BYTES, length - at), at, full)
                placed.append(self.copied.add(content))
                self._notify(path, len(content))
                self._source.hold(start)
            return path, size, placed, mark if mark == _mark(fd) else None
        finally:
            fileutil.close(fd)


def _mark(fd: int) -> FileFingerprint:
    status = os.fstat(fd)
    return FileFingerprint(status.st_ino, status.st_mtime_ns, status.st_size)


def _read(fd: int, length: int, at: int, path: Path) -> bytes:
    content = bytearray()
    while len(content) < length:
        part = os.pread(fd, length - len(content), at + len(content))
        if not part:
            raise BackupFailed(f"{path} ends at {at + len(content)}, before the log does")
        content += part
    return bytes(content)
