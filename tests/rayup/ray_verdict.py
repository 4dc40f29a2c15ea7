"""Ray broken under a cluster's load a number of times, and what it came to."""

from __future__ import annotations

import time
from typing import Final

from tests.chaos.failover.final_read import note_end
from tests.chaos.failover.nemesis import Nemesis
from tests.chaos.failover.recorded import Recorded
from tests.chaos.failover.verdict import Verdict, judge
from tests.rayup.breaking_ray import WEIGHTS
from tests.rayup.ray_hosts import RayHosts

#: Ray's autoscaler takes ten seconds to see that a node is away, and Ray as long to be there again.
PATIENCE_SECONDS: Final = 150.0
_DRAIN_SECONDS: Final = 60.0


def broken_under_load(cluster: RayHosts, faults: int, seed: int) -> Verdict:
    """The clients work when it is called, and have ended when it returns."""
    began = time.monotonic()
    nemesis = Nemesis(
        cluster,
        seed,
        kinds=tuple(WEIGHTS),
        weights=WEIGHTS,
        say=lambda line: print(line, flush=True),
        patience_seconds=PATIENCE_SECONDS,
    )
    for _ in range(faults):
        nemesis.turn()
    nemesis.crowding.stop()
    cluster.stop_load(_DRAIN_SECONDS)
    note_end(nemesis, cluster.folder / "nemesis.history")
    cluster.close()
    return judge(
        Recorded.read(cluster.history, cluster.folder / "nemesis.history"),
        seed=seed,
        seconds=time.monotonic() - began,
        settings="ray up, 3 groups of 2 replicas on 3 hosts, sync",
        waits=nemesis.waits,
        slowdowns=nemesis.slowdowns,
        stuck=nemesis.stuck,
    )
