"""Check for processes on this machine that Ray has left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from raymq.cluster.doctor.check_result import CheckResult, fine, problem

_OURS: Final = re.compile(r"ray::(Broker|NameServer|Keeper|Scheduler|Coordinator)\b")
RAYLET: Final = "raylet"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process; `parent` is its parent's name, "" if the parent has ended."""

    pid: int
    title: str
    parent: str


def is_raymq_actor(title: str) -> bool:
    """Return True if the process title is that of a RayMQ actor."""
    return _OURS.match(title) is not None


def is_orphan(process: ProcessInfo) -> bool:
    """Return True if the Ray node that started the process has ended."""
    return process.parent != RAYLET


def check_orphans(processes: Iterable[ProcessInfo], host: str) -> Iterator[CheckResult]:
    """Check for actors whose Ray node has ended.

    Such actors still serve clients that reach them, and hold locks that other processes wait for.
    """
    ours = [each for each in processes if is_raymq_actor(each.title)]
    orphans = [each for each in ours if is_orphan(each)]
    for each in orphans:
        yield problem(
            "orphaned processes",
            f"{each.title.split()[0]} runs, but the Ray node that started it does not",
            f"{host}: process {each.pid}",
            f"kill {each.pid}: it ends by itself in some minutes at the latest, and holds its directory until then",
        )
    if not orphans:
        found = f"{len(ours)} actors run here, each under its Ray node" if ours else "no actor of RayMQ runs here"
        yield fine("orphaned processes", found, host)
