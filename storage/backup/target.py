"""Where backups are: a folder of this machine, or one that Arrow reaches by an address (S3, Google Cloud, HDFS).

    backups/<name>.json           manifests; a backup is there from when its manifest is
    objects/<2 digits>/<SHA-256>  bytes of files; never changed

Whatever is written is there as a whole or not at all, as far as the file system can promise that: an object of another
size than a manifest says counts as missing, and is written anew.
"""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raymq.storage.backup.manifest import MOST_OBJECT_BYTES, check_name, is_object
from raymq.storage.errors import BackupFailed, InvalidInput, StoreError
from raymq.storage.files import fileutil

if TYPE_CHECKING:
    from pyarrow import fs

_BACKUPS: Final = "backups"
_OBJECTS: Final = "objects"
_ENDING: Final = ".json"
_MOST_MANIFEST_BYTES: Final = 1 << 30
#: File systems in which names may have slashes, and folders are nothing.
_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
#: What stands before a host, be it written as it has to be or not, and values of options that are called so.
_USER: Final = re.compile(r"://(?:[^/?#]*|[^/?#@]+:[^?#]*)@")
_SECRET_OPTION: Final = re.compile(r"([?&][^=&#]*(?:token|secret|password|key)=)[^&#]+", re.IGNORECASE)


class Target(ABC):
    """A place for the backups of one broker. One thread.

    All calls raise BackupFailed where the place cannot be reached or refuses, and FileNotFoundError for what is not
    there.
    """

    def __init__(self, where: str) -> None:
        self.where = where

    def names(self) -> list[str]:
        """Those of all manifests, whole or not."""
        files = self._files(_BACKUPS)
        return sorted(name.removesuffix(_ENDING) for name, _ in files if name.endswith(_ENDING))

    def read_manifest(self, name: str) -> bytes:
        """The bytes of a manifest."""
        return self._read(f"{_BACKUPS}/{name}{_ENDING}", _MOST_MANIFEST_BYTES)

    def write_manifest(self, name: str, content: bytes) -> None:
        """Make a backup be there."""
        self._write(f"{_BACKUPS}/{check_name(name)}{_ENDING}", content)

    def remove_manifest(self, name: str) -> None:
        """Have a backup not be there any more."""
        self._remove(f"{_BACKUPS}/{name}{_ENDING}")

    def objects(self) -> dict[str, int]:
        """The sizes of all objects, by name."""
        return {name: size for name, size in self._files(_OBJECTS) if is_object(name)}

    def read_object(self, name: str) -> bytes:
        """The bytes of an object, whether they are the right ones or not, but not more than an object may have."""
        return self._read(_path_of(name), MOST_OBJECT_BYTES + 1)

    def write_object(self, name: str, content: bytes | memoryview) -> None:
        """Store an object."""
        self._write(_path_of(name), content)

    def remove_object(self, name: str) -> None:
        """Drop an object."""
        self._remove(_path_of(name))

    def is_within(self, _: Path) -> bool:
        """Whether it lies in that folder of this machine."""
        return False

    @abstractmethod
    def sweep(self) -> None:
        """Drop what writers that died have left, where that is not the file system's own affair."""

    @abstractmethod
    def _files(self, folder: str) -> list[tuple[str, int]]:
        """Names and sizes of the files below a folder, at any depth; none where it is not there."""

    @abstractmethod
    def _read(self, path: str, most: int) -> bytes:
        """The first `most` bytes of a file."""

    @abstractmethod
    def _write(self, path: str, content: bytes | memoryview) -> None:
        """Write a file as a whole, durably."""

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove a file, if it is there."""


class FolderTarget(Target):
    """A folder of this machine; what is written is on disk when the call returns."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    def is_within(self, folder: Path) -> bool:
        return Path(os.path.realpath(self._folder)).is_relative_to(os.path.realpath(folder))

    def sweep(self) -> None:
        with _told(self.where):
            for folder in (_BACKUPS, _OBJECTS):
                for path, _ in _walk(self._folder / folder):
                    if path.name.endswith(".tmp"):
                        fileutil.remove(path)

    def _files(self, folder: str) -> list[tuple[str, int]]:
        with _told(self.where):
            return [(path.name, size) for path, size in _walk(self._folder / folder)]

    def _read(self, path: str, most: int) -> bytes:
        with _told(self.where):
            full = self._folder / path
            return fileutil.read_head(full, min(most, full.stat().st_size))

    def _write(self, path: str, content: bytes | memoryview) -> None:
        with _told(self.where):
            fileutil.make_folder((self._folder / path).parent)
            fileutil.replace(self._folder / path, content)

    def _remove(self, path: str) -> None:
        with _told(self.where):
            fileutil.remove(self._folder / path)


class ArrowTarget(Target):
    """A folder in one of Arrow's file systems."""

    def __init__(self, where: str, files: fs.FileSystem, folder: str) -> None:
        super().__init__(where)
        self._system = files
        self._folder = folder.rstrip("/")

    def sweep(self) -> None:
        pass

    def _files(self, folder: str) -> list[tuple[str, int]]:
        from pyarrow import fs

        with _told(self.where):
            chosen = fs.FileSelector(f"{self._folder}/{folder}", allow_not_found=True, recursive=True)
            found: list[Any] = self._system.get_file_info(chosen)
            return [(each.base_name, each.size) for each in found if each.type == fs.FileType.File]

    def _read(self, path: str, most: int) -> bytes:
        with _told(self.where), self._system.open_input_stream(f"{self._folder}/{path}") as stream:
            content: bytes = stream.read(most)
        return content

    def _write(self, path: str, content: bytes | memoryview) -> None:
        full = f"{self._folder}/{path}"
        with _told(self.where):
            if self._system.type_name not in _WITHOUT_FOLDERS:
                self._system.create_dir(full.rpartition("/")[0], recursive=True)
            with self._system.open_output_stream(full) as stream:
                stream.write(content)

    def _remove(self, path: str) -> None:
        with _told(self.where), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._folder}/{path}")


def open_target(where: str) -> Target:
    """The target at a path of this machine, or at an address such as `s3://bucket/folder?region=eu-west-1`.

    Raises:
        InvalidInput: it is no address that Arrow knows. BackupFailed: it cannot be reached.
    """
    if not _ADDRESS.match(where):
        return FolderTarget(Path(where))
    from pyarrow import ArrowException, fs

    shown = without_secrets(where)
    try:
        files, folder = fs.FileSystem.from_uri(where)
    except (ArrowException, ValueError, OSError, ImportError) as error:  # fsspec's are packages of their own
        reason = str(error).replace(where, shown)
        if isinstance(error, OSError):
            raise BackupFailed(f"{shown}: {reason}") from None
        raise InvalidInput(
            "target", f"a path, or an address that Arrow's file systems know ({reason})", shown
        ) from None
    if isinstance(files, fs.LocalFileSystem):
        return FolderTarget(Path(folder))
    if not folder.strip("/"):
        raise InvalidInput("target", "an address with a bucket or a folder", shown)
    return ArrowTarget(shown, files, folder)


def without_secrets(where: str) -> str:
    """An address as it may be shown: without whose it is and their password, nor tokens and keys of its options."""
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
def _told(where: str) -> Iterator[None]:
    """Errors of the place as BackupFailed; that something is not there stays what it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, StoreError) as error:
        if isinstance(error, BackupFailed):
            raise
        raise BackupFailed(f"{where}: {error}") from error
