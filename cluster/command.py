"""The entry point of the `raymq` command.

At Ctrl-C or SIGTERM it ends without a traceback. The import of the commands takes a second or two. Before that no work
has begun, so the process just ends.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Run the console script."""
    before = {}
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A shell's background processes ignore some signals, and so must this one.
        if signal.getsignal(which) not in (signal.SIG_IGN, None):
            before[which] = signal.signal(which, _leave)
    from raymq.cluster import cli

    for which, handler in before.items():
        signal.signal(which, handler)
    cli.main()


def _leave(which: int, _: FrameType | None) -> None:
    """End the process at once.

    An exception would pass through the code that is being imported, which may replace it with another exception.
    """
    os.write(2, b"interrupted\n")
    os._exit(128 + which)
