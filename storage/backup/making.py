"""Makes a backup: of what the target does not have yet, and the manifest last."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from raymq.storage.backup.copied import Copied, PlacedExtent
from raymq.storage.backup.manifest import EXTENT_BYTES, Manifest, Mark, StoredFile, check_name
from raymq.storage.backup.progress import BackupProgress, ignore
from raymq.storage.backup.pruning import check_keep, prune
from raymq.storage.backup.reading import read_catalog
from raymq.storage.backup.source import Source
from raymq.storage.backup.target import Target
from raymq.storage.clock import wall_ms
from raymq.storage.errors import BackupFailed, InvalidInput, StateMismatch
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import file_name
from raymq.storage.state.frozen_state import read_frozen


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What was made.

    Attributes:
        files, bytes: how much it has.
        copied_bytes: how much of that was not in the target before.
        gone: the names of former backups that were let go.
    """

    name: str
    log_begin: int
    log_end: int
    files: int
    bytes: int
    copied_bytes: int
    gone: list[str] = field(default_factory=list)


def back_up(
    source: Source,
    target: Target,
    *,
    name: str | None = None,
    keep: int | None = None,
    progress: Callable[[BackupProgress], None] = ignore,
    now_ms: Callable[[], int] = wall_ms,
) -> BackupReport:
    """Make a backup; before it returns, it is on the target's disk. Whoever dies meanwhile leaves those before it.

    Args:
        name: by default the time of now.
        keep: let former backups go, until there are so many. None: all stay.

    Raises:
        InvalidInput: another broker's backups are there, or one of that name; or it is the directory itself that the
            target lies in. BackupFailed, StoreFailed: none was made.
        FormatTooNew: a newer RayMQ has made backups there, or has written in the directory; none was made.
    """
    made_at_ms = now_ms()
    moment = datetime.fromtimestamp(made_at_ms / 1000, UTC)
    name = check_name(name or f"{moment:%Y-%m-%dT%H%M%S}.{made_at_ms % 1000:03}Z")
    if keep is not None:
        check_keep(keep)
    if target.is_within(source.directory):
        raise InvalidInput("target", f"a place outside of {source.directory}, which it is to outlive", target.where)
    catalog = read_catalog(target)
    if catalog.newer:  # what they share with this one, and what may go, only that RayMQ knows
        raise catalog.newer[0]
    before = catalog.backups
    if before:  # the newest one is the one that was made last, also after the clock was set back
        made_at_ms = max(made_at_ms, before[-1].made_at_ms + 1)
    if name in target.names():
        raise InvalidInput("backup", f"a name that {target.where} does not have yet", name)
    for each in before:
        if (each.broker.name, each.broker.cluster) != (source.broker.name, source.broker.cluster):
            theirs, ours = (f"{broker.name} of {broker.cluster}" for broker in (each.broker, source.broker))
            raise InvalidInput("target", f"a place for {ours} alone; there are backups of {theirs}", target.where)
    making = _Making(source, Copied(target, before), before, progress)
    folders, state = making.copy_state()
    failpoint("backup.after_state")
    log = making.copy_log()
    files = (*log, *state)
    made = Manifest(name, made_at_ms, source.broker, source.log_begin, source.log_end, folders, files, source.format)
    source.check()
    failpoint("backup.before_manifest")
    target.write_manifest(name, made.encode())
    failpoint("backup.after_manifest")
    gone = [] if keep is None else prune(target, keep)
    return BackupReport(
        name, made.log_begin, made.log_end, len(made.files), made.stored_bytes, making.copied.copied_bytes, gone
    )


class _Making:
    """One backup under way."""

    def __init__(
        self, source: Source, copied: Copied, before: Sequence[Manifest], progress: Callable[[BackupProgress], None]
    ) -> None:
        self.copied = copied
        self._source = source
        self._progress = progress
        self._done = 0
        self._total = source.state_bytes + source.log_end - source.log_begin
        #: Files that nobody changes any more, as the newest backup knows them.
        self._marked = {file.path: file for file in before[-1].files if file.mark is not None} if before else {}

    def _tell(self, path: str, more: int) -> None:
        self._done += more
        self._progress(BackupProgress(path, self._done, max(self._total, self._done), self.copied.copied_bytes))

    def copy_state(self) -> tuple[tuple[str, ...], list[StoredFile]]:
        """Folders and files of the state."""
        folders: list[str] = []
        files: dict[str, list[PlacedExtent]] = {}
        try:
            for part in self._source.parts():
                for path, at, content in read_frozen(part):
                    if at is None:
                        folders.append(path)
                        continue
                    placed = files.setdefault(path, [])
                    if content:
                        placed.append(self.copied.add(content))
                    self._tell(path, len(content))
        except StateMismatch as error:
            raise BackupFailed(f"what the broker tells of its state is none: {error}") from error
        self.copied.finish()
        stored = {path: tuple(each.extent for each in placed) for path, placed in files.items()}
        return tuple(folders), [
            StoredFile(path, sum(extent.length for extent in extents), extents) for path, extents in stored.items()
        ]

    def copy_log(self) -> list[StoredFile]:
        """The log's files, the oldest first; those that are done may go."""
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

    def _log_file(self, start: int, length: int) -> tuple[str, int, list[PlacedExtent], Mark | None]:
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
                self._tell(path, length)
                return path, size, [PlacedExtent(extent) for extent in known.extents], mark
            placed = []
            for at in range(0, length, EXTENT_BYTES):
                content = _read(fd, min(EXTENT_BYTES, length - at), at, full)
                placed.append(self.copied.add(content))
                self._tell(path, len(content))
                self._source.hold(start)
            return path, size, placed, mark if mark == _mark(fd) else None
        finally:
            fileutil.close(fd)


def _mark(fd: int) -> Mark:
    status = os.fstat(fd)
    return Mark(status.st_ino, status.st_mtime_ns, status.st_size)


def _read(fd: int, length: int, at: int, path: Path) -> bytes:
    content = bytearray()
    while len(content) < length:
        part = os.pread(fd, length - len(content), at + len(content))
        if not part:
            raise BackupFailed(f"{path} ends at {at + len(content)}, before the log does")
        content += part
    return bytes(content)
