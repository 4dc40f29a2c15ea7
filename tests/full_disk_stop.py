"""The suite stops where its disk is nearly full: brokers delete early then, and refuse, and tests fail misleadingly."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from raymq.storage.log.retention import Disk

#: A broker deletes log files early above 75 %, forces it above 85 %, and refuses writes above 90 %.
MOST_RATIO: Final = 0.80


def reason_to_stop(folder: Path, disk: Disk) -> str | None:
    """What to say where tests that make their files in `folder` would fail for want of room; None: there is enough."""
    if disk.ratio <= MOST_RATIO:
        return None
    return (
        f"the disk of the temporary folder {folder} is {disk.ratio:.0%} full: above {MOST_RATIO:.0%} brokers delete "
        "files early and refuse messages, and tests fail without a fault. Make room, or set TMPDIR to a folder on "
        "another disk"
    )
