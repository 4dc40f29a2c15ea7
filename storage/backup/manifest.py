"""What a backup consists of: a JSON object with a checksum of its own.

A file is a list of *extents*: so many bytes that lie at a place of an *object*, with their SHA-256. An object's name is
the SHA-256 of all of it. So equal bytes are stored once, whichever backup and file they are of, and nothing in the
target is ever changed. A manifest may have been written by anybody: what is read here has only paths of what a backup
holds, names of objects of 64 digits, and extents that follow each other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from raymq.storage.directory_format import DirectoryFormat
from raymq.storage.errors import FormatTooNew, InvalidInput, StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.state.frozen_state import is_of_backup
from raymq.storage.state.state_files import folders_above
from raymq.storage.tables.broker_identity import BrokerOf
from raymq.storage.version import VERSION

FORMAT: Final = 1
#: So much of a file is one extent at most.
EXTENT_BYTES: Final = 64 << 20
#: No object is larger: small extents share one.
MOST_OBJECT_BYTES: Final = EXTENT_BYTES
#: No file is larger on any file system.
_MOST_BYTES: Final = (1 << 63) - 1
#: As long as a name in a folder may be, in bytes.
_MOST_NAME: Final = 255
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LOG_FILE: Final = re.compile(r"commitlog/[0-9]{20}")


class Extent(NamedTuple):
    """Bytes of a file: `length` of them, at `at` of an object, with that SHA-256."""

    object: str
    at: int
    length: int
    digest: str


class Mark(NamedTuple):
    """By what a file that nobody changes any more is known again without reading it."""

    inode: int
    modified_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store.

    Attributes:
        size: of the file; what the extents do not reach are zeros.
        mark: of a log file behind which there was another one.
    """

    path: str
    size: int
    extents: tuple[Extent, ...]
    mark: Mark | None = None

    @property
    def stored_bytes(self) -> int:
        """How many bytes of it are stored."""
        return sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup: the log from `log_begin` to `log_end`, and the state of the moment when it ended there.

    Attributes:
        store: the format of the directory that was backed up.
    """

    name: str
    made_at_ms: int
    broker: BrokerOf
    log_begin: int
    log_end: int
    folders: tuple[str, ...] = ()
    files: tuple[StoredFile, ...] = field(default=(), repr=False)
    store: DirectoryFormat = field(default_factory=DirectoryFormat)

    @property
    def stored_bytes(self) -> int:
        """How many bytes of files it has."""
        return sum(file.stored_bytes for file in self.files)

    def extents(self) -> Iterator[Extent]:
        """Those of all files."""
        for file in self.files:
            yield from file.extents

    def encode(self) -> bytes:
        """As it is written."""
        told = asdict(self) | {"format": FORMAT, "writtenBy": VERSION}
        told["files"] = [
            {"path": file.path, "size": file.size, "extents": file.extents, "mark": file.mark} for file in self.files
        ]
        return json.dumps(told | {"sha256": _digest(told)}).encode()


def check_name(name: str) -> str:
    """The name of a backup; InvalidInput: it cannot be one."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("backup", "a name of at most 100 letters, digits, '.', '_' and '-'", name)
    return name


def is_object(name: str) -> bool:
    """Whether an object may have that name."""
    return _DIGEST.fullmatch(name) is not None


def decode(where: str, content: bytes) -> Manifest:
    """What is in a manifest.

    Raises:
        StoreCorrupt: it is none, or asks for what no backup has. FormatTooNew: a newer RayMQ wrote it.
    """
    try:
        told = json_file.parse(content.decode())
        digest = told.pop("sha256")
        if digest != _digest(told):
            raise ValueError("its checksum is another one")
        if _number(told["format"]) > FORMAT:
            raise FormatTooNew(where, told["format"], FORMAT, _text(told.get("writtenBy", "")))
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']}")
        return _manifest(told)
    except (InvalidInput, *json_file.ANOTHER_FORM) as error:
        raise StoreCorrupt(where, 0, f"no manifest of a backup: {error}") from error


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _manifest(told: Mapping[str, Any]) -> Manifest:
    files = tuple(_file(each) for each in told["files"])
    folders = tuple(_path(each) for each in told["folders"])
    paths = [*folders, *(file.path for file in files)]
    if len(set(paths)) < len(paths):
        raise ValueError("a path stands twice")
    above = {folder for path in paths for folder in folders_above(path)}
    if wrong := above & {file.path for file in files}:
        raise ValueError(f"a file with others in it: {min(wrong)!r:.200}")
    broker = told["broker"]
    name, cluster, host = (_text(broker[key]) for key in ("name", "cluster", "host"))
    known = BrokerOf(name, cluster, host, _number(broker["port"], 65535), _number(broker["epoch"]))
    begin, end = _number(told["log_begin"]), _number(told["log_end"])
    _check_log(files, begin, end)
    # Backups from before the directory's format was told have none, and are of the first one.
    store = DirectoryFormat(**told["store"]) if "store" in told else DirectoryFormat()
    made_at_ms = _number(told["made_at_ms"])
    return Manifest(check_name(told["name"]), made_at_ms, known, begin, end, folders, files, store)


def _check_log(files: Sequence[StoredFile], begin: int, end: int) -> None:
    """That the log's files follow each other, and have all from `begin` to `end`."""
    at = begin
    for file in sorted((each for each in files if _LOG_FILE.fullmatch(each.path)), key=lambda each: each.path):
        if int(file.path.rpartition("/")[2]) != at or file.stored_bytes < min(file.size, end - at):
            raise ValueError(f"the log is not whole at {at}")
        at += file.size
    if not begin <= end <= at:
        raise ValueError(f"a log from {begin} to {end}, of which files reach to {at}")


def _file(told: Mapping[str, Any]) -> StoredFile:
    extents = tuple(_extent(*each) for each in told["extents"])
    mark = None if told["mark"] is None else Mark(*map(_number, told["mark"]))
    file = StoredFile(_path(told["path"]), _number(told["size"]), extents, mark)
    if file.stored_bytes > file.size:
        raise ValueError(f"more bytes than {file.path} is large")
    return file


def _extent(name: Any, at: Any, length: Any, digest: Any) -> Extent:
    if not (is_object(_text(name)) and is_object(_text(digest))):
        raise ValueError(f"no name of an object: {name!r:.80}")
    extent = Extent(name, _number(at, MOST_OBJECT_BYTES), _number(length, EXTENT_BYTES), digest)
    if not 0 < extent.length <= MOST_OBJECT_BYTES - extent.at:
        raise ValueError(f"an extent of {extent.length} bytes at {extent.at}")
    return extent


def _path(value: Any) -> str:
    path = _text(value)
    if not (_LOG_FILE.fullmatch(path) or is_of_backup(path)) or max(map(len, path.encode().split(b"/"))) > _MOST_NAME:
        raise ValueError(f"a path that no backup has: {path!r:.200}")
    return path


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"no text: {value!r:.80}")
    return value


def _number(value: Any, most: int = _MOST_BYTES) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"no number from 0 to {most}: {value!r:.80}")
    return value
