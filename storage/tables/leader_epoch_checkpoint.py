"""Read and write the leader epochs of a log: RocketMQ's `epochFileCheckpoint`.

RocketMQ's broker can start from this file in the same directory. Its lines:

    2                 the number of entries
    773307083         CRC-32 of the entries' lines, line ends included, without its top bit; 0: not checked
    7-7000            epoch - log offset at which it begins
    8-8000

The state sequences at which epochs begin are in `raymq/epochs`, in the same form. Each file has its previous content as
`.bak`. Replication defines the meaning of epochs; a store truncates them together with its log.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil, json_file

#: The number of latest epochs that are kept; a replica from an earlier epoch gets a snapshot.
MAX_EPOCHS: Final = 65_536
REMEDY: Final = "put back its .bak, or remove both: the broker then gets a snapshot from its master"
_MAX_NUMBER: Final = (1 << 63) - 1
_MAX_EPOCH: Final = (1 << 31) - 1
#: Per entry two numbers of at most 10 and 19 digits, a hyphen and a line end; and the two lines before them.
_MAX_BYTES: Final = MAX_EPOCHS * 32 + 64

_log = logging.getLogger(__name__)


def encode(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the file's content for these pairs (epoch, start)."""
    lines = [f"{epoch}-{start}\n" for epoch, start in entries]
    body = "".join(lines).encode()
    return f"{len(lines)}\n{_crc(body)}\n".encode() + body


def decode(content: bytes) -> list[tuple[int, int]]:
    """Return the pairs (epoch, start) of a file's content.

    Raise ValueError if the content is incomplete or of another form.
    """
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{len(content)} B are too long")
    lines = content.decode("ascii").replace("\r\n", "\n").split("\n")
    if len(lines) < 3 or lines.pop() != "":
        raise ValueError("it ends within a line")
    count, crc = _number(lines[0], MAX_EPOCHS), _number(lines[1], 0x7FFFFFFF)
    entries = []
    for line in lines[2:]:
        epoch, _, start = line.partition("-")
        entries.append((_number(epoch, _MAX_EPOCH), _number(start, _MAX_NUMBER)))
    if len(entries) != count:
        raise ValueError(f"{len(entries)} entries, not {count}")
    # RocketMQ computes the CRC with the line ends of its machine.
    bodies = [end.join([*lines[2:], ""]).encode() for end in ("\n", "\r\n")]
    if crc != 0 and crc not in map(_crc, bodies):
        raise ValueError(f"the CRC is {_crc(bodies[0])}, not {crc}")
    return entries


def _crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def _number(text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise ValueError(f"{text[:40]!r} is not a number up to {most}")
    return int(text)


def load(path: Path) -> list[tuple[int, int]]:
    """Return the pairs (epoch, start) of a file, or none if it does not exist.

    Raises:
        StoreCorrupt: neither it nor its `.bak` is whole. StoreBusy, StoreFailed: it cannot be read (now).
    """
    problem: StoreCorrupt | None = None
    for candidate in (path, json_file.backup_path_of(path)):
        try:
            entries = decode(fileutil.read_whole(candidate))
        except FileNotFoundError:
            continue
        except ValueError as error:
            problem = problem or StoreCorrupt(str(candidate), 0, str(error), remedy=REMEDY)
            continue
        if problem is not None:
            _log.warning("%s: %s; its content before the last change is used", path, problem.reason)
        return entries
    if problem is not None:
        raise problem
    return []


def save(path: Path, entries: Iterable[tuple[int, int]]) -> None:
    """Write the entries durably and keep the previous content as `.bak`.

    Raise StoreFull or StoreFailed if it fails; the previous file stays.
    """
    content = encode(entries)
    fileutil.make_folder(path.parent)
    try:
        before = fileutil.read_whole(path)
        decode(before)
    except (FileNotFoundError, ValueError):
        pass
    else:
        fileutil.replace(json_file.backup_path_of(path), before)
    fileutil.replace(path, content)


def cut(path: Path, last_epoch: int) -> None:
    """Remove all epochs newer than `last_epoch`, also from the `.bak`.

    Raise as `load` and `save` do.
    """
    entries = load(path)
    retained = [(epoch, start) for epoch, start in entries if epoch <= last_epoch]
    if retained != entries:
        save(path, retained)
    if any(epoch > last_epoch for epoch, _ in _load_spare(path)):
        save(path, retained)


def _load_spare(path: Path) -> list[tuple[int, int]]:
    try:
        return decode(fileutil.read_whole(json_file.backup_path_of(path)))
    except (FileNotFoundError, ValueError):
        return []
