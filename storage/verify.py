"""Check a store directory without changes: every record of every commit log file, with CRC."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.log.commit_log import has_record_header
from raymq.storage.log.recovery import find_next_record_in
from raymq.storage.records import record as layout


@dataclass(slots=True)
class VerifyReport:
    """The result of a check.

    `records` is the number of sound records; `bad` lists damage as (file, offset within the file).
    """

    records: int = 0
    bad: list[tuple[str, int]] = field(default_factory=list)

    @property
    def bad_records(self) -> int:
        """Return the number of damaged ranges; each may hide several records."""
        return len(self.bad)


def verify(directory: str | os.PathLike[str]) -> VerifyReport:
    """Check all commit log files of a store, which may be open in another process.

    Bytes after the last record of the last file count as damage only if a sound record follows.

    Raises:
        InvalidInput: there is no commit log.
    """
    folder = Path(directory) / "commitlog"
    paths = files_of(folder)
    if not folder.is_dir():
        raise InvalidInput("directory", "a store directory", str(directory))
    report = VerifyReport()
    for path in paths:
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # retention has removed it meanwhile
            continue
        if size:
            file = MappedFile(path, int(path.name), size, writable=False)
            try:
                _verify_file(file, report, last=not _has_records(paths, path))
            finally:
                file.close()
    return report


def _has_records(paths: list[Path], path: Path) -> bool:
    """Return True if a file after `path` begins with a record.

    The last file may be allocated ahead, all zeros.
    """
    for later in paths[paths.index(path) + 1 :]:
        with later.open("rb") as stream:
            if any(stream.read(layout.MIN_RECORD_BYTES)):
                return True
    return False


def _verify_file(file: MappedFile, report: VerifyReport, *, last: bool) -> None:
    at = 0
    while at < file.size:
        if file.size - at >= layout.BLANK.size:
            size, magic = layout.BLANK.unpack_from(file.view, at)
            if magic == layout.MAGIC_BLANK and size == file.size - at:
                return
        try:
            measured = layout.measure(file.view, at, file.size)
            if not has_record_header(file, at):
                raise StoreCorrupt(str(file.path), at, "the record belongs to another offset")
        except StoreCorrupt:
            following = find_next_record_in(file, at + 1)
            if following < 0 and last and not any(file.view[at : at + layout.OFFSET_MAGIC]):
                return
            report.bad.append((str(file.path), at))
            if following < 0:
                return
            at = following
            continue
        report.records += 1
        at += measured
