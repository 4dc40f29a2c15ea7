"""Which calls of a producer are under way: looked for among the threads' frames, for to note it would make each send
slower.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import CodeType, FrameType


def is_within(frame: FrameType | None, codes: Collection[CodeType], owner: object) -> bool:
    """Whether one of these methods of `owner` is among what led to a frame."""
    while frame is not None:
        if frame.f_code in codes and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def is_within_here(codes: Collection[CodeType], owner: object) -> bool:
    """Whether the calling thread is in one of these methods of `owner`, as a signal handler finds it."""
    return is_within(sys._getframe(), codes, owner)  # noqa: SLF001


def is_within_elsewhere(codes: Collection[CodeType], owner: object) -> bool:
    """Whether another thread is in one of these methods of `owner`.

    Not the calling one: a signal handler would wait for what it has interrupted.
    """
    me = threading.get_ident()
    return any(thread != me and is_within(frame, codes, owner) for thread, frame in sys._current_frames().items())  # noqa: SLF001
