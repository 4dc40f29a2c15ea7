"""Test that lasting objects are scanned once, and not after each growth by a quarter."""

from __future__ import annotations

import subprocess
import sys

from raymq.actors.gc_tuning import LONG_SECONDS, GcFreezer

_MANY = """
import gc
from raymq.actors.gc_tuning import tune_gc
kept = [[n] for n in range(200_000)]
tune_gc()
print(len(gc.get_objects()))
circle = []
circle.append(circle)
del circle
print(gc.collect())
"""


def test_only_long_full_collection_freezes_survivors() -> None:
    now, frozen = [0.0], []
    follow = GcFreezer(lambda: now[0], lambda: frozen.append(now[0]))
    for generation, seconds in ((2, LONG_SECONDS / 2), (1, 1.0), (2, 2 * LONG_SECONDS)):
        follow("start", {"generation": generation})
        now[0] += seconds
        follow("stop", {"generation": generation})
    assert len(frozen) == 1
    assert frozen == [now[0]]


def test_collection_skips_objects_from_before_tuning() -> None:
    out = subprocess.run([sys.executable, "-c", _MANY], capture_output=True, text=True, timeout=60, check=True).stdout
    scanned, freed = map(int, out.split())
    assert scanned < 20_000
    assert freed == 1, "circles that were made since are still found"


_FIRST_LOOK = """
import gc
from raymq.actors.gc_tuning import tune_gc
gc.disable()
kept = [[n] for n in range(1_000_000)]
gc.collect()
gc.enable()
tune_gc()
looks = []
def follow(phase, info):
    if phase == "start" and info["generation"] == 2:
        looks.append(sum(len(gc.get_objects(generation)) for generation in range(3)))
gc.callbacks.append(follow)
new = [[n] for n in range(300_000)]
print(looks[0] if looks else len(new))
"""


def test_objects_from_before_tuning_do_not_delay_collection() -> None:
    """Guard against 250,000 new objects before the first collection, a pause of 0.1 s."""
    run = subprocess.run([sys.executable, "-c", _FIRST_LOOK], capture_output=True, text=True, timeout=60, check=True)
    assert int(run.stdout) < 50_000
