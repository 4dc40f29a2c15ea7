"""The format of RayMQ's own files in a store directory, kept in `raymq-format.json`.

    {"format":3,"writtenBy":"0.1.0","raymqCrc":3041279017}

The file is read before any other file of the directory. One number covers all files that RocketMQ does not have
(journals, timers, staged writes, ...); docs/internals/format.md has a table of what each number means. The number is
raised only if an older RayMQ would misread the files of a newer one; additions that an older RayMQ ignores need no new
number. A directory without the file has format 1, which is what RayMQ wrote before the file existed.

The number is raised before the first file of the new format is written, and never falls. Two files have the same
content, and the spare one is written first. The larger number of the readable files counts: after a crash between the
two writes the new number is in force, and a damaged file does not hide it. Both files are outside of the folder
`raymq/`, so that they stay if that folder is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import FormatTooNew, StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil, json_file
from raymq.storage.version import VERSION

#: The format that this RayMQ writes; it reads all formats up to this one.
CURRENT_FORMAT: Final = 3
#: The format of a directory without the file.
UNVERSIONED_FORMAT: Final = 1
_NAME: Final = "raymq-format.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryFormat:
    """A directory's format, and the version of RayMQ that raised it to that number.

    `written_by` is empty if no file names the version.
    """

    number: int = UNVERSIONED_FORMAT
    written_by: str = ""


def path_of(directory: Path) -> Path:
    """Return the path of the format file."""
    return directory / _NAME


def read_format(directory: Path) -> DirectoryFormat:
    """Return the format that a directory records, supported or not. Change nothing.

    Raises:
        StoreCorrupt: neither of the two files can be read.
        StoreBusy, StoreFailed: they cannot be read now.
    """
    found, problem = _read_both(path_of(directory))
    if found:
        return max(found, key=lambda each: each.number)
    if problem is not None:
        raise problem
    return DirectoryFormat()


def check_format(directory: Path) -> DirectoryFormat:
    """Return the directory's format as `read_format` does, after checking that it is supported.

    Raises:
        FormatTooNew: a newer RayMQ has written there; nothing was changed.
        StoreCorrupt, StoreBusy, StoreFailed: as `read_format`.
    """
    found = read_format(directory)
    check_format_supported(str(directory), found.number, found.written_by)
    return found


def check_format_supported(what: str, number: int, written_by: str = "") -> None:
    """Raise FormatTooNew if this RayMQ does not support the format `number` of `what`."""
    if number > CURRENT_FORMAT:
        raise FormatTooNew(what, number, CURRENT_FORMAT, written_by)


def upgrade_format(directory: Path) -> None:
    """Raise the directory's format to `CURRENT_FORMAT`. The caller holds the directory's lock.

    Call it before the first write in the directory. If both files have that format already, nothing is written. A crash
    leaves the former number or the new one.

    Raises:
        FormatTooNew: as `check_format`.
        StoreFull, StoreFailed: the format was not raised, or not in both files.
    """
    path = path_of(directory)
    known = check_format(directory)
    found, problem = _read_both(path)
    if [each.number for each in found] == [CURRENT_FORMAT, CURRENT_FORMAT]:
        return
    if problem is not None:
        _log.warning("%s is written again from its intact copy", problem.file)
    if known.number < CURRENT_FORMAT and (directory / "commitlog").is_dir():
        _log.info("%s is upgraded from format %d to %d", directory, known.number, CURRENT_FORMAT)
    is_complete = known.number == CURRENT_FORMAT and known.written_by
    write_format(directory, known if is_complete else DirectoryFormat(CURRENT_FORMAT, VERSION))


def write_format(directory: Path, now: DirectoryFormat) -> None:
    """Write the format to both files. Raise the errors of `upgrade_format`.

    The caller holds the directory's lock and has checked that the directory has no newer format.
    """
    path = path_of(directory)
    content = json_file.with_checksum(json_file.encode({"format": now.number, "writtenBy": now.written_by}).encode())
    failpoint("format.before_spare")
    fileutil.replace(json_file.backup_path_of(path), content)
    failpoint("format.before_file")
    fileutil.replace(path, content)
    failpoint("format.after_file")


def _read_both(path: Path) -> tuple[list[DirectoryFormat], StoreCorrupt | None]:
    """Return the formats in the readable files, and the error of an unreadable one."""
    found: list[DirectoryFormat] = []
    problem = None
    for each in (path, json_file.backup_path_of(path)):
        try:
            found.append(json_file.read(fileutil.read_whole(each).decode(), _format))
        except FileNotFoundError:
            continue
        except ValueError as error:
            remedy = "put back a copy of it; or remove it and its second copy, if no newer RayMQ has written there"
            problem = StoreCorrupt(str(each), 0, f"not readable: {error}", remedy=remedy)
    return found, problem


def _format(raw: Mapping[str, Any]) -> DirectoryFormat:
    number, written_by = raw["format"], raw["writtenBy"]
    if type(number) is not int or number < 1 or not isinstance(written_by, str):
        raise ValueError(f"not a format: {number!r:.20}, {written_by!r:.80}")
    return DirectoryFormat(number, written_by)
