"""Find the producer calls that are running, by the stack frames of the threads.

Recording each call instead would make every send slower.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import CodeType, FrameType


def is_in_call(frame: FrameType | None, codes: Collection[CodeType], owner: object) -> bool:
    """Return True if a frame's stack contains one of these methods of `owner`."""
    while frame is not None:
        if frame.f_code in codes and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def is_in_call_here(codes: Collection[CodeType], owner: object) -> bool:
    """Return True if the calling thread is in one of these methods of `owner`.

    A signal handler uses this to find out which call it has interrupted.
    """
    return is_in_call(sys._getframe(), codes, owner)  # noqa: SLF001


def is_in_call_elsewhere(codes: Collection[CodeType], owner: object) -> bool:
    """Return True if another thread is in one of these methods of `owner`.

    The calling thread does not count: a signal handler would wait for the call that it has interrupted.
    """
    me = threading.get_ident()
    return any(thread != me and is_in_call(frame, codes, owner) for thread, frame in sys._current_frames().items())  # noqa: SLF001
