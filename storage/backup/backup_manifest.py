"""The manifest of a backup: a JSON object with a checksum of its own.

A file is a list of *extents*: ranges of bytes within an *object*, each with its SHA-256. An object's name is the
SHA-256 of all of its content. So equal bytes are stored once, whichever backups and files contain them, and stored
objects never change. A manifest may have been written by anybody. So it is checked when it is read: it may only have
paths that a backup can contain, object names of 64 digits, and contiguous extents.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from raymq.storage.backup.backup_state import is_backup_path
from raymq.storage.directory_format import DirectoryFormat
from raymq.storage.errors import FormatTooNew, InvalidInput, StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.tables.broker_identity import BrokerIdentity
from raymq.storage.version import VERSION

FORMAT: Final = 1
#: The maximum size of an extent in bytes.
EXTENT_BYTES: Final = 64 << 20
#: The maximum size of an object in bytes; small extents share one object.
MAX_OBJECT_BYTES: Final = EXTENT_BYTES
#: The maximum size of a file on any file system.
_MAX_BYTES: Final = (1 << 63) - 1
#: The maximum length of a file name in bytes.
_MAX_NAME: Final = 255
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_Bytes = Annotated[int, Meta(ge=0, le=_MAX_BYTES)]
_Digest = Annotated[str, Meta(pattern=rf"^{_DIGEST.pattern}\Z")]
_LOG_FILE: Final = re.compile(r"commitlog/[0-9]{20}")


class Extent(NamedTuple):
    """A range of a file's bytes in an object.

    The extent has `length` bytes at offset `at` of the object, with the SHA-256 `digest`.
    """

    object: _Digest
    at: Annotated[int, Meta(ge=0, le=MAX_OBJECT_BYTES)]
    length: Annotated[int, Meta(gt=0, le=EXTENT_BYTES)]
    digest: _Digest


class FileFingerprint(NamedTuple):
    """Values that identify an unchanged log file without reading it."""

    inode: _Bytes
    modified_ns: _Bytes
    size: _Bytes


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store.

    Attributes:
        size: the size of the file; bytes after the extents are zeros.
        mark: the fingerprint of a log file that was followed by another one.
    """

    path: str
    size: _Bytes
    extents: tuple[Extent, ...]
    mark: FileFingerprint | None = None

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes of the file are stored."""
        return sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup: the log from `log_begin` to `log_end`, and the state at the same moment.

    That moment is when the log ended at `log_end`.

    Attributes:
        store: the format of the directory that was backed up.
    """

    name: Annotated[str, Meta(pattern=rf"^{_NAME.pattern}\Z")]
    made_at_ms: _Bytes
    broker: BrokerIdentity
    log_begin: _Bytes
    log_end: _Bytes
    folders: tuple[str, ...] = ()
    files: tuple[StoredFile, ...] = field(default=(), repr=False)
    store: DirectoryFormat = field(default_factory=DirectoryFormat)

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes of files the backup has."""
        return sum(file.stored_bytes for file in self.files)

    def extents(self) -> Iterator[Extent]:
        """Iterate over the extents of all files."""
        for file in self.files:
            yield from file.extents

    def encode(self) -> bytes:
        """Return the manifest as JSON with its checksum."""
        content = asdict(self) | {"format": FORMAT, "writtenBy": VERSION}
        content["files"] = [
            {"path": file.path, "size": file.size, "extents": file.extents, "mark": file.mark} for file in self.files
        ]
        return json.dumps(content | {"sha256": _digest(content)}).encode()


def check_name(name: str) -> str:
    """Return the name of a backup. Raise InvalidInput if it is not allowed."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("backup", "a name of at most 100 letters, digits, '.', '_' and '-'", name)
    return name


def is_object(name: str) -> bool:
    """Return True if an object may have that name."""
    return _DIGEST.fullmatch(name) is not None


def decode(where: str, content: bytes) -> Manifest:
    """Decode and check a manifest.

    Raises:
        StoreCorrupt: it is malformed, or names something that no backup can contain.
        FormatTooNew: a newer RayMQ wrote it.
    """
    try:
        parsed = json_file.parse(content.decode())
        digest = parsed.pop("sha256")
        if digest != _digest(parsed):
            raise ValueError("wrong checksum")
        if parsed["format"] > FORMAT:
            raise FormatTooNew(where, parsed["format"], FORMAT, str(parsed.get("writtenBy", "")))
        if parsed["format"] != FORMAT:
            raise ValueError(f"unknown format {parsed['format']}")
        return _checked(msgspec.convert(parsed, Manifest))
    except json_file.DECODE_ERRORS as error:
        raise StoreCorrupt(where, 0, f"not the manifest of a backup: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checked(manifest: Manifest) -> Manifest:
    """Return the manifest; raise ValueError unless its paths and extents are possible."""
    for file in manifest.files:
        if any(each.length > MAX_OBJECT_BYTES - each.at for each in file.extents) or file.stored_bytes > file.size:
            raise ValueError(f"{file.path!r:.200} has an impossible extent")
    paths = [*manifest.folders, *(file.path for file in manifest.files)]
    if wrong := [path for path in paths if not _is_path(path)]:
        raise ValueError(f"not a path of a backup: {wrong[0]!r:.200}")
    if len(set(paths)) < len(paths):
        raise ValueError("a path occurs twice")
    above = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    if also := above & {file.path for file in manifest.files}:
        raise ValueError(f"a file that is also a folder: {min(also)!r:.200}")
    _check_log(manifest.files, manifest.log_begin, manifest.log_end)
    return manifest


def _is_path(path: str) -> bool:
    """Return True if a backup may have a file or folder at this path."""
    names = path.encode().split(b"/")
    return bool(_LOG_FILE.fullmatch(path) or is_backup_path(path)) and max(map(len, names)) <= _MAX_NAME


def _check_log(files: Sequence[StoredFile], begin: int, end: int) -> None:
    """Raise ValueError unless the log files are contiguous and cover `begin` to `end`."""
    at = begin
    for file in sorted((each for each in files if _LOG_FILE.fullmatch(each.path)), key=lambda each: each.path):
        if int(file.path.rpartition("/")[2]) != at or file.stored_bytes < min(file.size, end - at):
            raise ValueError(f"the log has a gap at {at}")
        at += file.size
    if not begin <= end <= at:
        raise ValueError(f"the log is from {begin} to {end}, but its files end at {at}")
