"""Record the stacks of an event loop's thread while the loop is blocked, with a second thread.

Call `watch(path)` on the loop. Each stop longer than `LONG_SECONDS` becomes one line of JSON in the file: its length,
the CPU time of the loop's thread, the time of garbage collection, and the stacks that were seen, the most frequent
first. If the loop's thread holds the interpreter in one long C call, its stack is seen only after the call; the stacks
of the other threads show whether one of them held the interpreter instead.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

LONG_SECONDS = 0.02
_BEAT_SECONDS = 0.005
_POLL_SECONDS = 0.002
_DEPTH = 14


def watch(path: Path) -> None:
    """Watch the running loop until the process ends."""
    _Watch(asyncio.get_running_loop(), path.open("a", buffering=1))


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop, out: TextIO) -> None:
        self._loop, self._out = loop, out
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._seen: Counter[tuple[str, str]] = Counter()
        self._collecting = self._began = 0.0
        self._last, self._cpu = time.monotonic(), 0.0
        gc.callbacks.append(self._collect)
        self._beat()
        threading.Thread(target=self._look, name="loop watch", daemon=True).start()

    def _beat(self) -> None:
        now, cpu = time.monotonic(), time.clock_gettime(self._clock)
        stopped = now - self._last - _BEAT_SECONDS
        seen, self._seen = self._seen, Counter()
        if stopped > LONG_SECONDS:
            line = {
                "at": round(time.time(), 3),
                "ms": round(1000 * stopped, 1),
                "cpu_ms": round(1000 * (cpu - self._cpu), 1),
                "gc_ms": round(1000 * self._collecting, 1),
                "stacks": [[count, who, stack] for (who, stack), count in seen.most_common(12)],
            }
            self._out.write(json.dumps(line) + "\n")
        self._collecting = 0.0
        self._last, self._cpu = time.monotonic(), cpu
        self._loop.call_later(_BEAT_SECONDS, self._beat)

    def _collect(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.monotonic()
        else:
            self._collecting += time.monotonic() - self._began

    def _look(self) -> None:
        me = threading.get_ident()
        while True:
            time.sleep(_POLL_SECONDS)
            if time.monotonic() - self._last < _BEAT_SECONDS + LONG_SECONDS / 2:
                continue
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, places in _stacks().items():
                if ident == me:
                    continue
                who = "loop" if ident == self._thread else str(names.get(ident, ident))
                stack = " < ".join(f"{c.co_name}:{Path(c.co_filename).name}:{line}" for c, line in places)
                if who == "loop" or not stack.startswith(("wait:", "_worker:", "select:", "_recv")):
                    self._seen[who, stack] += 1


def _stacks() -> dict[int, list[tuple[CodeType, int]]]:
    """Return the stack of each thread, innermost first.

    No frame outlives the call: a kept frame would keep the variables of a returned function, such as a view of a buffer
    that its owner is about to resize.
    """
    stacks = {}
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = top
        places = stacks[ident] = list[tuple[CodeType, int]]()
        while frame is not None and len(places) < _DEPTH:
            places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
    return stacks
