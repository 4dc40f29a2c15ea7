"""Checks of the processes on this machine: those that Ray has left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from raymq.cluster.doctor.finding import Finding, fine, problem

_OURS: Final = re.compile(r"ray::(Broker|NameServer|Keeper|Scheduler|Coordinator)\b")
RAYLET: Final = "raylet"


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """A process; `parent` is its parent's name, "" where that has ended."""

    pid: int
    title: str
    parent: str


def is_ours(title: str) -> bool:
    """Whether it is an actor of RayMQ."""
    return _OURS.match(title) is not None


def is_orphan(process: ProcessSeen) -> bool:
    """Whether the Ray node that has started it is gone."""
    return process.parent != RAYLET


def orphans(processes: Iterable[ProcessSeen], host: str) -> Iterator[Finding]:
    """Actors whose Ray node is gone: they serve whoever still finds them, and hold what others wait for."""
    ours = [each for each in processes if is_ours(each.title)]
    left = [each for each in ours if is_orphan(each)]
    for each in left:
        yield problem(
            "orphaned processes",
            f"{each.title.split()[0]} runs, and the Ray node that has started it does not",
            f"{host}: process {each.pid}",
            f"kill {each.pid}: it ends by itself in some minutes at the latest, and holds its directory until then",
        )
    if not left:
        found = f"{len(ours)} actors run here, each under its Ray node" if ours else "no actor of RayMQ runs here"
        yield fine("orphaned processes", found, host)
