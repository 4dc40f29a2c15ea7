"""RayDP's parts that a session needs, without the rest of it.

`import raydp` brings Ray Data and pandas, which nothing here uses: most of a second of the start of a session, in the
driver and again in the process of the master. Its modules are loaded as if `raydp` and `raydp.spark` were packages
without content; who imports these later gets them whole.
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
def bare_raydp() -> Iterator[None]:
    """While the body runs, an import of a module of RayDP loads that module alone, unless all of it is there."""
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


with bare_raydp():
    from raydp.spark.ray_cluster import SparkCluster
    from raydp.spark.ray_cluster_master import SPARK_JAVAAGENT, RayDPSparkMaster

__all__ = ["SPARK_JAVAAGENT", "RayDPSparkMaster", "SparkCluster", "bare_raydp"]
