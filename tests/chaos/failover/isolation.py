"""Running a program in namespaces of its own: what it makes of networks and processes ends with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

#: What is done there first: `ip netns` keeps its names below /run, which is the machine's.
_BEFORE = 'mount -t tmpfs tmpfs /run && exec "$@"'


def isolated(command: Sequence[str]) -> list[str]:
    """`command` as a process that is the first of its own process, mount and network namespaces."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount"]
    if os.geteuid():
        own += ["--user", "--map-root-user"]
    return [*own, "sh", "-c", _BEFORE, "sh", *command]


@cache
def reason_not_to() -> str | None:
    """Why no such program can run here; None: it can."""
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    tried = subprocess.run(
        isolated(["ip", "link", "add", "name", "bridge0", "type", "bridge"]),
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no network of its own: {tried.stderr.strip()}"
