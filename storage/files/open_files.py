"""A bound on how many files are mapped at once, for stores with more queues than a process may open files."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from raymq.storage.files.mapped_file import MappedFile

#: Each costs a mapping and two descriptors (Python's mmap keeps its own).
MAPPED_FILES: Final = 512


class Owner(Protocol):
    """Who opens files through an `OpenFiles`, and opens them again when they are needed."""

    def close_mapping(self, start: int, /) -> None:
        """Let go of the file that begins at `start`; its bytes stay in the kernel's cache, written or not."""


class OpenFiles:
    """The files that are mapped, about in the order of their last use (second chance). Belongs to one thread."""

    def __init__(self, limit: int = MAPPED_FILES) -> None:
        self._limit = limit
        self._files: deque[tuple[Owner, MappedFile]] = deque()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, owner: Owner, file: MappedFile) -> None:
        """A file was mapped; if that makes too many, one is closed that was not used for long."""
        while len(self._files) >= self._limit:
            old_owner, old = self._files.popleft()
            if old.used and not old.closed:
                old.used = False
                self._files.append((old_owner, old))
            elif not old.closed:
                old_owner.close_mapping(old.start)
        self._files.append((owner, file))
