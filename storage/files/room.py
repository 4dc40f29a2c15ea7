"""Room on the disk that is held back for an opening, and given back where one of its calls finds none.

Like the descriptors that are held back (`descriptors`): the call that was refused is made once more, so that nothing of
what was done before it has to be done again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: The disk, or this user's share of it, has no room.
NONE_LEFT: Final = (errno.ENOSPC, errno.EDQUOT)


class _AtHand:
    """What one opening may have back."""

    def __init__(self, root: Path, give_back: Callable[[], bool]) -> None:
        self.root = root
        self.give_back = give_back
        self.thread = threading.get_ident()
        self.given = False


class Room:
    """Any thread; what is at hand is so for the thread that said it: others prepare files that can wait."""

    def __init__(self) -> None:
        self._at_hand: list[_AtHand] = []

    @contextmanager
    def at_hand(self, root: Path, give_back: Callable[[], bool]) -> Iterator[None]:
        """Within it a call of this thread below `root` that finds no room has `give_back` called, and is made again."""
        entry = _AtHand(root, give_back)
        self._at_hand.append(entry)
        try:
            yield
        finally:
            self._at_hand.remove(entry)

    def gives(self, error: OSError, path: Path) -> bool:
        """Whether there is room now that was not, so that the call which raised `error` may be made once more."""
        return error.errno in NONE_LEFT and any(self._give(entry) for entry in self._of(path))

    def was_given(self, root: Path) -> bool:
        """Whether the opening of `root` that is under way in this thread has had room given back."""
        return any(entry.given for entry in self._of(root))

    def _of(self, path: Path) -> list[_AtHand]:
        thread = threading.get_ident()
        return [e for e in self._at_hand if e.thread == thread and path.is_relative_to(e.root)]

    @staticmethod
    def _give(entry: _AtHand) -> bool:
        if entry.given or not entry.give_back():
            return False
        entry.given = True
        return True


#: This process's.
ROOM: Final = Room()
