"""Import the parts of RayDP that a session needs, without the rest of it.

`import raydp` loads Ray Data and pandas, which this package does not use: most of a second of a session's start, in the
driver and again in the process of the master. The modules are loaded as if `raydp` and `raydp.spark` were empty
packages; a later import of these packages loads them completely.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

_PACKAGES: Final = ("raydp", "raydp.spark")


@contextmanager
def minimal_raydp() -> Iterator[None]:
    """Let imports of RayDP's modules in the body load these modules alone.

    This has no effect if RayDP is loaded completely already.
    """
    spec = importlib.util.find_spec("raydp")
    lent: dict[str, ModuleType] = {}
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent
        for name in _PACKAGES:
            if name not in sys.modules:
                package = ModuleType(name)
                folder = root.joinpath(*name.split(".")[1:])
                package.__file__, package.__path__ = str(folder / "__init__.py"), [str(folder)]
                lent[name] = sys.modules[name] = package
    try:
        yield
    finally:
        for name, package in lent.items():
            if sys.modules.get(name) is package:
                del sys.modules[name]


with minimal_raydp():
    from raydp.spark.ray_cluster import SparkCluster
    from raydp.spark.ray_cluster_master import SPARK_JAVAAGENT, RayDPSparkMaster

__all__ = ["SPARK_JAVAAGENT", "RayDPSparkMaster", "SparkCluster", "minimal_raydp"]
