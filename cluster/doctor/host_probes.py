"""Read the data of the machine that this process runs on.

Nothing is changed, apart from a file that is written and removed. The functions also run on other machines, as Ray
tasks.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from raymq.actors.java import JavaNotFound, find_java
from raymq.cluster.doctor.host_checks import DiskInfo, HostInfo
from raymq.cluster.doctor.process_checks import ProcessInfo, is_orphan, is_raymq_actor
from raymq.cluster.doctor.store_checks import StoreInfo
from raymq.cluster.ray_probe import AUTH_MODE
from raymq.storage.directory_format import check_format
from raymq.storage.errors import FormatTooNew, StoreError
from raymq.storage.files.directory_lock import DirectoryLock
from raymq.storage.log.retention import DiskUsage
from raymq.storage.records import native_kernels
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.broker_identity import read_broker_identity

_MAPPINGS: Final = Path("/proc/sys/vm/max_map_count")
_SMALL_BYTES: Final = 4 << 10
_SMALL_WRITES: Final = 9
_LARGE_BYTES: Final = 8 << 20
_JAVA_SECONDS: Final = 20.0
#: The most entries of a directory whose owners are checked.
_MAX_ENTRIES: Final = 20_000
_CONNECT_SECONDS: Final = 0.5


def read_machine(folders: Sequence[str] = (), *, spark: bool = False) -> HostInfo:
    """Read the data of the machine, and of the disks under these folders.

    Args:
        spark: whether Java is required even if Spark is not installed.
    """
    soft, hard = (_limit(each) for each in resource.getrlimit(resource.RLIMIT_NOFILE))
    mappings = None
    with contextlib.suppress(OSError, ValueError):
        mappings = int(_MAPPINGS.read_text("ascii"))
    wants_java = spark or importlib.util.find_spec("pyspark") is not None
    ray = _version("ray")
    return HostInfo(
        host=socket.gethostname(),
        ray=ray,
        wanted_ray=_wanted("ray", ray),
        native=_native(),
        wanted_native=native_kernels.INTERFACE,
        wants_java=wants_java,
        java=_java() if wants_java else None,
        soft_files=soft,
        hard_files=hard,
        mappings=mappings,
        auth_mode=os.environ.get(AUTH_MODE, ""),
        disks=tuple(map(read_disk, folders)),
    )


def read_disk(folder: str) -> DiskInfo:
    """Measure how full and how fast the disk under a folder is.

    A few MiB are written there, and removed.
    """
    disk = DiskUsage.of(Path(folder))
    sync_ms = write_mb = None
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".raymq-doctor-") as file:
        times = []
        for _ in range(_SMALL_WRITES):
            begun = time.perf_counter()
            file.write(bytes(_SMALL_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        file.write(os.urandom(_LARGE_BYTES))
        file.flush()
        os.fdatasync(file.fileno())
        write_mb = _LARGE_BYTES / 1e6 / (time.perf_counter() - begun)
        sync_ms = 1e3 * statistics.median(times)
    return DiskInfo(folder, disk.ratio, disk.free, sync_ms, write_mb)


def read_processes() -> list[ProcessInfo]:
    """Return the processes of RayMQ's actors on this machine."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if is_raymq_actor(title):
                found.append(ProcessInfo(process.pid, title, _parent(process)))
    return found


def _parent(process: psutil.Process) -> str:
    parent = process.parent()
    if parent is None or parent.status() == psutil.STATUS_ZOMBIE:
        return ""
    return parent.name()


def stores_below(root: Path) -> list[str]:
    """Return the store directories in a folder, and the folder itself if it is one."""
    candidates = [root, *sorted(root.iterdir())] if root.is_dir() else []
    marks = ("commitlog", "raymq", StorePaths(root).restoring.name)
    return [
        str(each.resolve()) for each in candidates if each.is_dir() and any((each / mark).exists() for mark in marks)
    ]


def read_store(directory: str, processes: Collection[ProcessInfo]) -> StoreInfo:
    """Read the state of a store directory; nothing in it is changed."""
    paths = StorePaths(Path(directory))
    holder = None
    with contextlib.suppress(StoreError):
        holder = DirectoryLock.holder(paths.lock)
    title, orphaned = "", False
    if holder:
        known = {each.pid: each for each in processes}.get(holder)
        orphaned = known is not None and is_orphan(known)
        with contextlib.suppress(psutil.Error):
            title = " ".join(psutil.Process(holder).cmdline())[:100]
    address, is_taken = "", False
    with contextlib.suppress(StoreError):
        broker = read_broker_identity(paths.root / "raymq" / "broker.json")
        if broker.host and broker.port:
            address = f"{broker.host}:{broker.port}"
            is_taken = holder is None and _listens(broker.host, broker.port)
    too_new = None
    with contextlib.suppress(StoreError):
        try:
            check_format(paths.root)
        except FormatTooNew as error:
            too_new = error
    return StoreInfo(
        directory=directory,
        holder=holder,
        holder_title=title,
        is_orphan=orphaned,
        was_closed=not paths.abort.exists(),
        is_restoring=paths.restoring.exists(),
        foreign=tuple(_foreign(paths.root)),
        address=address,
        address_is_taken=is_taken,
        too_new=too_new,
    )


def _foreign(root: Path) -> Iterator[str]:
    """Yield the first path in a directory that has another owner than the directory."""
    owner = root.stat().st_uid
    looked = 0
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            looked += 1
            with contextlib.suppress(OSError):
                if os.lstat(os.path.join(folder, name)).st_uid != owner:
                    yield os.path.join(folder, name)
                    return
        if looked > _MAX_ENTRIES:
            return


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _limit(value: int) -> float:
    return float("inf") if value == resource.RLIM_INFINITY else float(value)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _wanted(package: str, version: str | None) -> tuple[str, bool]:
    """Return RayMQ's version requirement of a package, and whether `version` meets it.

    The requirement has a form such as ">=2.60,<2.61".
    """
    for each in importlib.metadata.requires("raymq") or ():
        name, _, marker = each.partition(";")
        if not marker and name.startswith(package) and not name[len(package)].isalnum():
            requirements = sorted(name.removeprefix(package).strip().split(","), reverse=True)
            return ",".join(requirements), version is not None and all(_fits(version, part) for part in requirements)
    return "", True


def _fits(version: str, part: str) -> bool:
    numbers, bound = (_numbers(each) for each in (version, part.lstrip("<>=! ")))
    if part.startswith(">="):
        return numbers >= bound
    return numbers < bound if part.startswith("<") else True


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")[:3] if each.isdigit()]


def _native() -> int | None:
    try:
        import raymq_native
    except ImportError:
        return None
    interface: int = raymq_native.INTERFACE
    return interface


def _java() -> str | None:
    try:
        program = find_java() / "bin" / "java"
        result = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=True
        )
    except (JavaNotFound, OSError, subprocess.SubprocessError):
        return None
    lines = (result.stderr or result.stdout).splitlines()
    return next((line for line in lines if "version" in line), lines[0] if lines else None)
