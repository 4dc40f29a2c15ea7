"""Run a program in namespaces of its own, whose networks and processes end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

#: Runs there first: `ip netns` keeps its names in /run, which would be the machine's.
_BEFORE = 'mount -t tmpfs tmpfs /run && exec "$@"'


def isolated(command: Sequence[str]) -> list[str]:
    """Return `command` as the first process of its own process, mount and network namespaces."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount"]
    if os.geteuid():
        own += ["--user", "--map-root-user"]
    return [*own, "sh", "-c", _BEFORE, "sh", *command]


@cache
def reason_not_to() -> str | None:
    """Return why no such program can run here; None if it can."""
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
