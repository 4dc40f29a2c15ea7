"""Where backups are stored: a local folder, or one of Arrow's file systems.

Arrow's are addressed by a URI (S3, Google Cloud, HDFS).

    backups/<name>.json           manifests; a backup exists once its manifest exists
    objects/<2 digits>/<SHA-256>  bytes of files; never changed

A file is written completely or not at all, as far as the file system can guarantee that: an object whose size differs
from the manifest's counts as missing, and is written again.
"""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raymq.storage.backup.backup_manifest import MAX_OBJECT_BYTES, check_name, is_object
from raymq.storage.errors import BackupFailed, InvalidInput, StoreError
from raymq.storage.files import fileutil

if TYPE_CHECKING:
    from pyarrow import fs

_BACKUPS: Final = "backups"
_OBJECTS: Final = "objects"
_ENDING: Final = ".json"
_MAX_MANIFEST_BYTES: Final = 1 << 30
#: Object stores: names may have slashes, and folders do not have to be created.
_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
#: The user info of an address, even if it is not encoded correctly; and the values of options with these names.
_USER: Final = re.compile(r"://(?:[^/?#]*|[^/?#@]+:[^?#]*)@")
_SECRET_OPTION: Final = re.compile(r"([?&][^=&#]*(?:token|secret|password|key)=)[^&#]+", re.IGNORECASE)


class BackupTarget(ABC):
    """A place for the backups of one broker. One thread.

    All calls raise BackupFailed if the place cannot be reached or refuses the call, and FileNotFoundError for a missing
    file.
    """

    def __init__(self, where: str) -> None:
        self.where = where

    def names(self) -> list[str]:
        """Return the names of all manifests, complete or not."""
        files = self._files(_BACKUPS)
        return sorted(name.removesuffix(_ENDING) for name, _ in files if name.endswith(_ENDING))

    def read_manifest(self, name: str) -> bytes:
        """Return the bytes of a manifest."""
        return self._read(f"{_BACKUPS}/{name}{_ENDING}", _MAX_MANIFEST_BYTES)

    def write_manifest(self, name: str, content: bytes) -> None:
        """Write a manifest, with which the backup exists."""
        self._write(f"{_BACKUPS}/{check_name(name)}{_ENDING}", content)

    def remove_manifest(self, name: str) -> None:
        """Remove a manifest, after which the backup no longer exists."""
        self._remove(f"{_BACKUPS}/{name}{_ENDING}")

    def objects(self) -> dict[str, int]:
        """Return the sizes of all objects, by name."""
        return {name: size for name, size in self._files(_OBJECTS) if is_object(name)}

    def read_object(self, name: str) -> bytes:
        """Return the bytes of an object, unchecked.

        At most one byte more than the maximum size of an object is read.
        """
        return self._read(_path_of(name), MAX_OBJECT_BYTES + 1)

    def write_object(self, name: str, content: bytes | memoryview) -> None:
        """Store an object."""
        self._write(_path_of(name), content)

    def remove_object(self, name: str) -> None:
        """Remove an object."""
        self._remove(_path_of(name))

    def is_within(self, _: Path) -> bool:
        """Return True if the target lies in that local folder."""
        return False

    @abstractmethod
    def remove_leftovers(self) -> None:
        """Remove temporary files of crashed writers, unless the file system does that itself."""

    @abstractmethod
    def _files(self, folder: str) -> list[tuple[str, int]]:
        """Return names and sizes of all files below a folder, at any depth.

        Return nothing if the folder does not exist.
        """

    @abstractmethod
    def _read(self, path: str, most: int) -> bytes:
        """Return the first `most` bytes of a file."""

    @abstractmethod
    def _write(self, path: str, content: bytes | memoryview) -> None:
        """Write a complete file, durably."""

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove a file if it exists."""


class FolderTarget(BackupTarget):
    """A local folder as target; written files are on disk when the call returns."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    def is_within(self, folder: Path) -> bool:
        return Path(os.path.realpath(self._folder)).is_relative_to(os.path.realpath(folder))

    def remove_leftovers(self) -> None:
        with _place_errors(self.where):
            for folder in (_BACKUPS, _OBJECTS):
                for path, _ in _walk(self._folder / folder):
                    if path.name.endswith(".tmp"):
                        fileutil.remove(path)

    def _files(self, folder: str) -> list[tuple[str, int]]:
        with _place_errors(self.where):
            return [(path.name, size) for path, size in _walk(self._folder / folder)]

    def _read(self, path: str, most: int) -> bytes:
        with _place_errors(self.where):
            full = self._folder / path
            return fileutil.read_head(full, min(most, full.stat().st_size))

    def _write(self, path: str, content: bytes | memoryview) -> None:
        with _place_errors(self.where):
            fileutil.make_folder((self._folder / path).parent)
            fileutil.replace(self._folder / path, content)

    def _remove(self, path: str) -> None:
        with _place_errors(self.where):
            fileutil.remove(self._folder / path)


class ArrowTarget(BackupTarget):
    """A folder in one of Arrow's file systems."""

    def __init__(self, where: str, files: fs.FileSystem, folder: str) -> None:
        super().__init__(where)
        self._system = files
        self._folder = folder.rstrip("/")

    def remove_leftovers(self) -> None:
        pass

    def _files(self, folder: str) -> list[tuple[str, int]]:
        from pyarrow import fs

        with _place_errors(self.where):
            chosen = fs.FileSelector(f"{self._folder}/{folder}", allow_not_found=True, recursive=True)
            found: list[Any] = self._system.get_file_info(chosen)
            return [(each.base_name, each.size) for each in found if each.type == fs.FileType.File]

    def _read(self, path: str, most: int) -> bytes:
        with _place_errors(self.where), self._system.open_input_stream(f"{self._folder}/{path}") as stream:
            content: bytes = stream.read(most)
        return content

    def _write(self, path: str, content: bytes | memoryview) -> None:
        full = f"{self._folder}/{path}"
        with _place_errors(self.where):
            if self._system.type_name not in _WITHOUT_FOLDERS:
                self._system.create_dir(full.rpartition("/")[0], recursive=True)
            with self._system.open_output_stream(full) as stream:
                stream.write(content)

    def _remove(self, path: str) -> None:
        with _place_errors(self.where), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._folder}/{path}")


def open_target(where: str) -> BackupTarget:
    """Return the target at a local path or at an address.

    An example of an address is `s3://bucket/folder?region=eu-west-1`.

    Raises:
        InvalidInput: Arrow does not support the address.
        BackupFailed: it cannot be reached.
    """
    if not _ADDRESS.match(where):
        return FolderTarget(Path(where))
    from pyarrow import ArrowException, fs

    shown = without_secrets(where)
    try:
        files, folder = fs.FileSystem.from_uri(where)
    except (ArrowException, ValueError, OSError, ImportError) as error:  # ImportError: fsspec's are separate packages
        reason = str(error).replace(where, shown)
        if isinstance(error, OSError):
            raise BackupFailed(f"{shown}: {reason}") from None
        raise InvalidInput(
            "target", f"a path, or an address that Arrow's file systems support ({reason})", shown
        ) from None
    if isinstance(files, fs.LocalFileSystem):
        return FolderTarget(Path(folder))
    if not folder.strip("/"):
        raise InvalidInput("target", "an address with a bucket or a folder", shown)
    return ArrowTarget(shown, files, folder)


def without_secrets(where: str) -> str:
    """Return an address as it may be shown.

    User name and password are removed, and the values of options with tokens and keys.
    """
    return _SECRET_OPTION.sub(r"\1***", _USER.sub("://***@", where))


def _path_of(name: str) -> str:
    if not is_object(name):
        raise InvalidInput("object", "64 hexadecimal digits", name)
    return f"{_OBJECTS}/{name[:2]}/{name}"


def _walk(folder: Path) -> Iterator[tuple[Path, int]]:
    for entry in fileutil.entries_of(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path), entry.stat(follow_symlinks=False).st_size


@contextlib.contextmanager
def _place_errors(where: str) -> Iterator[None]:
    """Raise errors of the place as BackupFailed, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, StoreError) as error:
        if isinstance(error, BackupFailed):
            raise
        raise BackupFailed(f"{where}: {error}") from error
