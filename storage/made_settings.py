"""The settings that were made since a table was written: a line of JSON each, so that making one costs one write.

They are there after a kill, and again in the table then. The file is emptied when the table has been written. A line
says which version of the table it made: one that the table on disk has reached has it, or has had it and it was deleted
since. So nothing depends on when the emptied file gets to the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raymq.storage import fileutil, json_file


class MadeSettings:
    """One thread."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Read what is there: `lines`, without one that a kill has cut."""
        self._path = path
        self._fd = -1
        self._writable = writable
        self.lines: list[Mapping[str, Any]] = []
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        for line in content.splitlines():
            try:
                told = json.loads(line) if line else None
            except ValueError:
                continue
            if isinstance(told, dict):
                self.lines.append(told)
        self._is_empty = not content

    def add(self, *made: Mapping[str, Any]) -> None:
        """Survives the process when it returns. StoreFull, StoreFailed: not written."""
        if self._fd < 0:
            fileutil.make_folder(self._path.parent)
            self._fd = fileutil.open_for_append(self._path)
        self._is_empty = False
        # The break in front ends what a write that failed has left.
        fileutil.write_all(self._fd, b"".join(f"\n{json_file.encode(each)}\n".encode() for each in made), self._path)

    def clear(self) -> None:
        """The table has been written. StoreFailed if the disk fails."""
        if not self._is_empty and self._writable:
            if self._fd < 0:
                self._fd = fileutil.open_for_append(self._path)
            fileutil.truncate(self._fd, 0, self._path)
            self._is_empty = True

    def close(self) -> None:
        """Let go of the file. May be called again."""
        if self._fd >= 0:
            fileutil.close(self._fd)
            self._fd = -1
