"""All checks together: of this machine, and of a cluster as far as it can be reached."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from raymq.actors.errors import RayMQError
from raymq.client import Admin
from raymq.client.results import ClusterInfo
from raymq.cluster import found as notes
from raymq.cluster.bootstrap import Cluster
from raymq.cluster.doctor import probes
from raymq.cluster.doctor.asking import figures_of
from raymq.cluster.doctor.brokers import check_cluster
from raymq.cluster.doctor.finding import Finding, Severity, fine, note, problem
from raymq.cluster.doctor.machine import check_machine
from raymq.cluster.doctor.processes import orphans
from raymq.cluster.doctor.stores import check_store


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at.

    Attributes:
        connect: a connection to the cluster; raises RayMQError where there is none.
        is_named: whether somebody said which cluster, so that it is wrong that there is none.
        namespace, address: where it is looked for in Ray; None: wherever there is one.
        root: a folder with directories of brokers on this machine, beside those of the brokers that answer.
        spark: Java is wanted whether Spark is installed or not.
        ray: whether it is looked through Ray, too.
    """

    connect: Callable[[], Cluster]
    is_named: bool
    namespace: str
    address: str | None
    root: Path | None
    spark: bool
    ray: bool


def diagnose(patient: Patient) -> Iterator[Finding]:
    """Everything, as it is found."""
    with_ray = list(_join_ray(patient)) if patient.ray else []
    yield from with_ray
    has_ray = bool(with_ray) and all(each.severity is Severity.FINE for each in with_ray)
    info: ClusterInfo | None = None
    try:
        with patient.connect() as mq, Admin(mq) as admin:
            info = _with_real_paths(admin.cluster_info())
            figures, clocks = figures_of(mq, info)
        yield from check_cluster(info, figures)
        yield from clocks
    except RayMQError as error:
        remedy = error.remedy or "name it (--namespace, --address, --name-servers), or start it"
        found = f"no cluster was found, and only this machine is looked at: {Exception.__str__(error)}"
        yield (problem if patient.is_named else note)("cluster", found, patient.namespace, remedy)
    directories = _directories(patient, info, has_ray=has_ray)
    seen = probes.read_machine(directories, spark=patient.spark)
    yield from check_machine(seen)
    processes = probes.read_processes()
    yield from orphans(processes, seen.host)
    brokers = None if info is None else info.brokers
    for directory in directories:
        yield from check_store(probes.read_store(directory, processes), brokers, seen.host)
    if has_ray:
        from raymq.cluster.doctor import nodes

        yield from nodes.check_nodes(patient.spark, seen.host)
        if info is not None:
            yield from nodes.check_actors(patient.namespace)


def _with_real_paths(info: ClusterInfo) -> ClusterInfo:
    """With the brokers' directories as they are called without links; those that do not answer do not say theirs."""
    brokers = [replace(each, store=each.store and str(Path(each.store).resolve())) for each in info.brokers]
    return replace(info, brokers=brokers)


def _directories(patient: Patient, info: ClusterInfo | None, *, has_ray: bool) -> list[str]:
    """Those of brokers on this machine, as far as they are known."""
    roots = [] if patient.root is None else [patient.root]
    if has_ray and info is not None:
        from raymq.cluster import launching

        with contextlib.suppress(RayMQError):
            roots.append(Path(launching.told_arguments(patient.namespace)["root"]))
    told = [] if info is None else [each.store for each in info.brokers if each.store]
    there = {each for each in told if Path(each, "commitlog").is_dir()}
    return sorted(there.union(*map(probes.stores_below, roots)))


def _join_ray(patient: Patient) -> Iterator[Finding]:
    """Join the cluster's Ray, or say why that cannot be."""
    host = socket.gethostname()
    try:
        from raymq.cluster import ray_runtime

        ray_runtime.join_address(patient.address or "auto", partial(_noted_ray, patient.namespace))
        yield fine("ray", f"joined at {ray_runtime.address()}", host)
    except ImportError as error:
        yield note("ray", f"nodes and actors are not looked at: Ray cannot be imported: {error}", host)
    except RayMQError as error:
        found = f"nodes and actors are not looked at: {Exception.__str__(error)}"
        yield (problem if patient.address else note)("ray", found, host, error.remedy)


def _noted_ray(namespace: str) -> str | None:
    known = notes.load(namespace)
    return None if known is None else known.ray_address
