"""Limit how many files are mapped at once.

A store may have more queues than a process may have open files.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from raymq.storage.files.mapped_file import MappedFile

#: Each mapped file takes a mapping and two descriptors (Python's mmap keeps its own).
MAPPED_FILES: Final = 512


class MappingOwner(Protocol):
    """An object that maps files through a `MappedFileCache`, and maps them again when needed."""

    def close_mapping(self, start: int, /) -> None:
        """Close the mapping of the file that begins at `start`.

        Its bytes stay in the kernel's page cache, whether they were written to disk or not.
        """


class MappedFileCache:
    """The mapped files, roughly in order of last use (second chance). One thread."""

    def __init__(self, limit: int = MAPPED_FILES) -> None:
        self._limit = limit
        self._files: deque[tuple[MappingOwner, MappedFile]] = deque()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, owner: MappingOwner, file: MappedFile) -> None:
        """Register a mapped file; above the limit, close files that were not used recently."""
        while len(self._files) >= self._limit:
            old_owner, old = self._files.popleft()
            if old.used and not old.closed:
                old.used = False
                self._files.append((old_owner, old))
            elif not old.closed:
                old_owner.close_mapping(old.start)
        self._files.append((owner, file))
