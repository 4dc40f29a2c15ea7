"""Which format RayMQ's own files in a store directory have: `raymq-format.json`, looked at before anything else.

    {"format":1,"writtenBy":"0.1.0","raymqCrc":3041279017}

One number stands for all files that RocketMQ does not know (journals, timers, staged writes, ...):
docs/internals/format.md has a table of what each number means. It rises only where an older RayMQ would misread what a
newer one writes; what an older one passes over needs no new number. A directory without the file has format 1, which is
what RayMQ wrote before there was one.

The number is raised before the first file of the new format is written, and never falls. It stands in two files of the
same content, the spare one written first: of those that can be read the larger number counts, so that a death between
the two leaves the new one, and a damaged file does not hide it. They lie beside the folder `raymq/`, whose files a
master ships to its replicas: each directory has its own.
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

#: What this RayMQ writes; it reads all formats up to this one.
CURRENT: Final = 1
#: That of a directory without the file.
BEFORE_THE_FILE: Final = 1
_NAME: Final = "raymq-format.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryFormat:
    """A directory's format, and which version of RayMQ raised it to that; empty where no file says so."""

    number: int = BEFORE_THE_FILE
    written_by: str = ""


def path_of(directory: Path) -> Path:
    """Where the number stands."""
    return directory / _NAME


def read_format(directory: Path) -> DirectoryFormat:
    """What a directory says of itself, be that known here or not. Changes nothing.

    Raises:
        StoreCorrupt: what is there cannot be read, neither file. StoreBusy, StoreFailed: it cannot be read now.
    """
    found, problem = _read_both(path_of(directory))
    if found:
        return max(found, key=lambda each: each.number)
    if problem is not None:
        raise problem
    return DirectoryFormat()


def check_format(directory: Path) -> DirectoryFormat:
    """`read_format` by who wants to use the directory.

    Raises:
        FormatTooNew: a newer RayMQ has written there; nothing was changed. As `read_format` besides.
    """
    found = read_format(directory)
    check_known(str(directory), found.number, found.written_by)
    return found


def check_known(what: str, number: int, written_by: str = "") -> None:
    """Raise FormatTooNew where `what` has a format that this RayMQ does not know."""
    if number > CURRENT:
        raise FormatTooNew(what, number, CURRENT, written_by)


def raise_format(directory: Path) -> None:
    """Have the directory say `CURRENT`: before the first write there, by who has its lock.

    A directory that says so already, in both files, is left as it is. A death leaves the former number or the new one.

    Raises:
        FormatTooNew: as `check_format`. StoreFull, StoreFailed: not raised, or not in both files.
    """
    path = path_of(directory)
    known = check_format(directory)
    found, problem = _read_both(path)
    if [each.number for each in found] == [CURRENT, CURRENT]:
        return
    if problem is not None:
        _log.warning("%s is made anew, for the other one of two can be read", problem.file)
    if known.number < CURRENT:
        _log.info("%s has format %d, and %d from now on", directory, known.number, CURRENT)
    is_told = known.number == CURRENT and known.written_by
    write_format(directory, known if is_told else DirectoryFormat(CURRENT, VERSION))


def write_format(directory: Path, now: DirectoryFormat) -> None:
    """Have the directory say that: by who has its lock, and knows that it holds nothing newer; as `raise_format`."""
    path = path_of(directory)
    content = json_file.sealed(json_file.encode({"format": now.number, "writtenBy": now.written_by}).encode())
    failpoint("format.before_spare")
    fileutil.replace(json_file.spare_of(path), content)
    failpoint("format.before_file")
    fileutil.replace(path, content)
    failpoint("format.after_file")


def _read_both(path: Path) -> tuple[list[DirectoryFormat], StoreCorrupt | None]:
    """What the two files say, as far as they are there and can be read; and what is wrong with one that cannot."""
    found: list[DirectoryFormat] = []
    problem = None
    for each in (path, json_file.spare_of(path)):
        try:
            found.append(json_file.read(fileutil.read_whole(each).decode(), _format))
        except FileNotFoundError:
            continue
        except ValueError as error:
            remedy = "put back a copy of it; or remove it and the one beside it, if no newer RayMQ has written there"
            problem = StoreCorrupt(str(each), 0, f"not readable: {error}", remedy=remedy)
    return found, problem


def _format(told: Mapping[str, Any]) -> DirectoryFormat:
    number, written_by = told["format"], told["writtenBy"]
    if type(number) is not int or number < 1 or not isinstance(written_by, str):
        raise ValueError(f"no format: {number!r:.20}, {written_by!r:.80}")
    return DirectoryFormat(number, written_by)
