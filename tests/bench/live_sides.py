"""Single sends of two trees whose brokers and clients live at the same time, a thousand of each side in turns.

What one send takes swings by a fifth from process to process, and by as much with what else a machine does; between two
that take turns every 60 ms it differs by a hundredth from one run to the next. The broker's processor is kept awake by
a program that the system runs when there is nothing else: else each request would wait, or not, for a processor that
has gone to sleep, which takes a quarter of a send, and is chance.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

#: Of each side the rows of each of its rounds.
Found = dict[str, list[list[dict[str, Any]]]]

KINDS: Final = ("send", "idempotent send")
SIZES: Final = (100, 1024)
TURN: Final = 1_000
#: Of each kind and size, before anything counts.
WARMING: Final = 3_000
_PROGRAM: Final = Path(__file__).with_name("live_side.py")
_STAY_AWAKE: Final = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


class LiveSide:
    """A tree's broker and client; `asked` has them send."""

    def __init__(self, tree: Path, *metrics: str) -> None:
        self._process = subprocess.Popen(
            [str(tree / ".venv/bin/python"), str(_PROGRAM), str(tree), *metrics],
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        if self._output.readline() != "ready\n":
            raise SystemExit(f"{tree}: the broker or its client did not begin")

    def asked(self, kind: str, size: int, count: int) -> float:
        """The median of so many sends, us."""
        self._input.write(f"{kind} {size} {count}\n")
        self._input.flush()
        return float(self._output.readline())

    def end(self) -> None:
        self._input.close()
        self._process.wait(60)
        self._output.close()


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """The last processor does not go to sleep meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", _STAY_AWAKE])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def rows(trees: Mapping[str, Path], turns: int, metrics: Mapping[str, str] = MappingProxyType({})) -> Found:
    """Return what each side took in each of its turns, as benches print it.

    Args:
        metrics: where the brokers of a side publish metrics; those of other sides do not.
    """
    found: Found = {side: [] for side in trees}
    with contextlib.ExitStack() as stack:
        stack.enter_context(awake())
        sides = {}
        for side, tree in trees.items():
            sides[side] = LiveSide(tree, *([metrics[side]] if side in metrics else []))
            stack.callback(sides[side].end)
        for kind in KINDS:
            for size in SIZES:
                for each in sides.values():
                    each.asked(kind, size, WARMING)
                for turn in range(turns):
                    for side in sorted(sides, reverse=bool(turn % 2)):
                        value = sides[side].asked(kind, size, TURN)
                        found[side].append([{"name": f"{kind}, {size} B", "unit": "us p50", "value": value}])
    return found
