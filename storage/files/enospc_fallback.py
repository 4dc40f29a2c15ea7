"""Release reserved disk space when a call finds no room while a store is opened.

As with the reserved descriptors (`descriptor_reserve`), only the refused call is repeated; the steps before it are not.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: The disk, or the user's quota, has no room.
NO_SPACE_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)


class _ReserveEntry:
    """The reserved space that one opening may release."""

    def __init__(self, root: Path, give_back: Callable[[], bool]) -> None:
        self.root = root
        self.give_back = give_back
        self.thread = threading.get_ident()
        self.given = False


class EnospcFallback:
    """The reserves of this process that may be released. Any thread.

    A reserve is available only to the thread that registered it, because other threads prepare files that can wait.
    """

    def __init__(self) -> None:
        self._at_hand: list[_ReserveEntry] = []

    @contextmanager
    def releasable_for(self, root: Path, give_back: Callable[[], bool]) -> Iterator[None]:
        """Call `give_back` when a call below `root` finds no room, and repeat that call.

        That holds within the context, for calls of this thread.
        """
        entry = _ReserveEntry(root, give_back)
        self._at_hand.append(entry)
        try:
            yield
        finally:
            self._at_hand.remove(entry)

    def release_for(self, error: OSError, path: Path) -> bool:
        """Release space for the call that raised `error`; return True to repeat the call."""
        return error.errno in NO_SPACE_ERRNOS and any(self._give(entry) for entry in self._of(path))

    def was_released(self, root: Path) -> bool:
        """Return True if this thread's current opening of `root` had space released."""
        return any(entry.given for entry in self._of(root))

    def _of(self, path: Path) -> list[_ReserveEntry]:
        thread = threading.get_ident()
        return [e for e in self._at_hand if e.thread == thread and path.is_relative_to(e.root)]

    @staticmethod
    def _give(entry: _ReserveEntry) -> bool:
        if entry.given or not entry.give_back():
            return False
        entry.given = True
        return True


#: The fallback of this process.
ENOSPC_FALLBACK: Final = EnospcFallback()
