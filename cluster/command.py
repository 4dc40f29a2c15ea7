"""The `raymq` command as its script calls it: whenever Ctrl-C or SIGTERM come, it ends without a traceback.

What the commands need takes a second or two to import. Until then nothing has begun, so the process just ends.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """The console script."""
    before = {}
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(which) not in (signal.SIG_IGN, None):  # as for what runs in the background of a shell
            before[which] = signal.signal(which, _leave)
    from raymq.cluster import cli

    for which, handler in before.items():
        signal.signal(which, handler)
    cli.main()


def _leave(which: int, _: FrameType | None) -> None:
    """At once: an exception would go through whatever is being imported, which may make another one of it."""
    os.write(2, b"interrupted\n")
    os._exit(128 + which)
