"""How pytest-xdist shares the tests out to its processes: whole files, and all that starts clusters in few goes.

Whoever starts a cluster mostly waits, for processes and for sockets, and who kills brokers for the disk; the rest
computes. So there are more processes than cores. Clusters with Spark need memory and both cores: never two of them at
once. What takes long begins first.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from xdist.scheduler import LoadScopeScheduling

#: Folders whose tests start Ray, or servers for everybody.
_CLUSTERS: Final = ("chaos", "integration", "interop")
#: How the names of files begin whose clusters have Spark.
_SPARK: Final = ("test_spark", "test_pipeline", "test_demo")
#: Other clusters' files from this name on are a unit of their own; both take about as long.
_SECOND_HALF: Final = "test_l"
#: Units that take long, the longest first.
_FIRST: Final = ("spark", "clusters, first half", "clusters, second half", "chaos")


class SharedOut(LoadScopeScheduling):
    """Its units of work are made of file names. (pytest 9.2 has names that marks cannot be written into.)"""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to."""
    path = PurePosixPath(nodeid.partition("::")[0])
    folder = path.parts[1] if len(path.parts) > 2 else ""  # below tests/
    if folder not in _CLUSTERS:
        return str(path)
    if folder == "chaos":
        return folder
    if path.name.startswith(_SPARK):
        return "spark"
    return "clusters, first half" if path.name < _SECOND_HALF else "clusters, second half"


def turn(nodeid: str) -> int:
    """What has a smaller one begins earlier."""
    unit = unit_of(nodeid)
    return _FIRST.index(unit) if unit in _FIRST else len(_FIRST) + ("/crash/" not in unit)
