"""Test the checks of `raymq doctor`: the severity of each fault, and a remedy for each problem."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from raymq.actors.errors import FormatTooNew
from raymq.actors.protocol import BrokerInfo, Corruption
from raymq.client.results import ClusterInfo, KeeperInfo, NameServerInfo, SchedulerInfo
from raymq.cluster.doctor import broker_checks, host_checks, process_checks, store_checks
from raymq.cluster.doctor.check_result import CheckResult, Severity
from raymq.cluster.doctor.host_checks import DiskInfo, HostInfo
from raymq.cluster.doctor.process_checks import ProcessInfo
from raymq.cluster.doctor.store_checks import StoreInfo

GOOD = HostInfo(
    host="h",
    ray="2.60.0",
    wanted_ray=(">=2.60,<2.61", True),
    native=2,
    wanted_native=2,
    wants_java=True,
    java='openjdk version "17.0.9" 2023-10-17',
    soft_files=1024,
    hard_files=1 << 20,
    mappings=65530,
    auth_mode="token",
    disks=(DiskInfo("/data", 0.5, 1 << 40, 1.0, 500.0),),
)


def worst_severities(found: Iterable[CheckResult]) -> dict[str, str]:
    """Return the worst severity of each check."""
    order = [Severity.FINE, Severity.NOTE, Severity.PROBLEM]
    result: dict[str, Severity] = {}
    for each in found:
        assert each.found
        if each.severity is Severity.PROBLEM:
            assert each.remedy, f"{each} says not what to do"
        result[each.check] = max(result.get(each.check, Severity.FINE), each.severity, key=order.index)
    return {check: severity.value for check, severity in result.items()}


def test_healthy_machine_has_only_fine_results() -> None:
    found = worst_severities(host_checks.check_machine(GOOD))
    assert set(found.values()) == {"fine"}
    assert found.keys() == {
        *("ray version", "native code", "java", "open files", "mappings", "auth mode", "disk room", "disk speed")
    }


DISK = GOOD.disks[0]


@pytest.mark.parametrize(
    ("changes", "check", "severity"),
    [
        ({"ray": None}, "ray version", "problem"),
        ({"ray": "2.59.1", "wanted_ray": (">=2.60,<2.61", False)}, "ray version", "problem"),
        ({"native": None}, "native code", "note"),
        ({"native": 1}, "native code", "problem"),
        ({"java": None}, "java", "problem"),
        ({"java": None, "wants_java": False}, "java", "fine"),
        ({"java": 'openjdk version "21.0.2" 2024-01-16'}, "java", "problem"),
        ({"java": 'java version "1.8.0_202"'}, "java", "problem"),
        ({"java": "no version at all"}, "java", "problem"),
        ({"hard_files": 256.0}, "open files", "problem"),
        ({"hard_files": 4096.0}, "open files", "note"),
        ({"hard_files": math.inf}, "open files", "fine"),
        ({"mappings": 1000}, "mappings", "problem"),
        ({"mappings": None}, "mappings", "note"),
        ({"auth_mode": ""}, "auth mode", "note"),
        ({"auth_mode": "disabled"}, "auth mode", "fine"),
        ({"auth_mode": "Token"}, "auth mode", "fine"),
        ({"auth_mode": "yes"}, "auth mode", "problem"),
        ({"disks": (replace(DISK, ratio=0.8),)}, "disk room", "note"),
        ({"disks": (DISK, replace(DISK, ratio=0.9))}, "disk room", "problem"),
        ({"disks": (replace(DISK, sync_ms=None, write_mb=None),)}, "disk speed", "problem"),
        ({"disks": (replace(DISK, sync_ms=30.0),)}, "disk speed", "note"),
        ({"disks": (replace(DISK, sync_ms=300.0),)}, "disk speed", "problem"),
        ({"disks": (replace(DISK, write_mb=5.0),)}, "disk speed", "problem"),
    ],
)
def test_machine_check_reports_each_fault(changes: dict[str, Any], check: str, severity: str) -> None:
    found = worst_severities(host_checks.check_machine(replace(GOOD, **changes)))
    assert found.pop(check) == severity
    assert set(found.values()) <= {"fine"}


@pytest.mark.parametrize(
    ("offset", "known_to", "severity"),
    [(0.0, 0.001, "fine"), (-0.5, 0.01, "note"), (2.0, 0.01, "problem"), (-3.0, 0.1, "problem"), (2.0, 2.5, "fine")],
)
def test_clock_offset_has_a_severity(offset: float, known_to: float, severity: str) -> None:
    assert worst_severities([host_checks.check_clock_offset("h", offset, known_to)]) == {"clocks": severity}


BROKER = BrokerInfo("broker-a", 0, "master", "running", 1, "h:1", 7, "n", "/data/broker-a", 0.5)
CLUSTER = ClusterInfo([BROKER], [NameServerInfo("h:9", 8)], SchedulerInfo(9, 0.01), [])


def test_healthy_cluster_has_only_fine_results() -> None:
    found = worst_severities(broker_checks.check_cluster(CLUSTER, {"h:1": {"setAside_retry": "0"}}))
    checks = "sockets", "undeliverable messages", "scheduler", "versions", "missing topics", "transactions"
    assert found == dict.fromkeys(checks, "fine")


def test_missing_topic_is_noted_once_per_group() -> None:
    figures = {"h:1": {"waitsFor_g": "a b"}, "h:2": {"waitsFor_g": "a", "waitsFor_h": "c"}}
    found = list(broker_checks.missing_topics(figures))
    assert [each.found for each in found] == [
        "group g waits for topic a, which does not exist",
        "group g waits for topic b, which does not exist",
        "group h waits for topic c, which does not exist",
    ]
    assert {each.severity for each in found} == {Severity.NOTE}


def test_waiting_transactions_are_noted_once_per_producer_group() -> None:
    figures = {"h:1": {"transactionsOf_shop": "2"}, "h:2": {"transactionsOf_shop": "1", "transactionsOf_other": "5"}}
    figures["h:2"]["transactionsOfOthers"] = "7"
    found = list(broker_checks.undecided_transactions(figures))
    assert [each.found for each in found] == [
        "open transactions that no connected producer of group other can be asked about: 5",
        "open transactions that no connected producer of group shop can be asked about: 3",
        "open transactions of other groups without a connected producer: 7",
    ]
    assert {each.severity for each in found} == {Severity.NOTE}


def group(*in_sync: int, role: str = "master", **changes: Any) -> list[BrokerInfo]:
    """A group of three replicas."""
    master = replace(BROKER, role=role, in_sync=list(in_sync), lag_bytes=0, **changes)
    return [master, *(replace(BROKER, replica=n, role="replica", in_sync=[0], lag_bytes=5) for n in (1, 2))]


@pytest.mark.parametrize(
    ("changes", "check", "severity"),
    [
        ({"brokers": []}, "sockets", "problem"),
        ({"brokers": [replace(BROKER, state="unreachable")]}, "sockets", "problem"),
        ({"brokers": [replace(BROKER, state="starting")]}, "sockets", "problem"),
        ({"name_servers": [NameServerInfo("h:9", None)]}, "sockets", "problem"),
        ({"keepers": [KeeperInfo(1, "h:3", None, None, "unreachable")]}, "sockets", "problem"),
        ({"keepers": [KeeperInfo(1, "h:3", 5, False, "empty")]}, "keepers", "problem"),
        ({"keepers": [KeeperInfo(1, "h:3", 5, True, "quiet")]}, "sockets", "fine"),
        ({"brokers": group(0, 1, 2)}, "in sync", "fine"),
        ({"brokers": group(0, 2)}, "in sync", "problem"),
        ({"brokers": group(0, 1, 2, role="replica")}, "in sync", "problem"),
        ({"brokers": [replace(BROKER, corruption=[Corruption("f", 5, "crc")])]}, "corruption", "problem"),
        ({"brokers": [BROKER, replace(BROKER, name="broker-b", version="9.8.7")]}, "versions", "note"),
        ({"brokers": [replace(BROKER, disk_ratio=0.91)]}, "disk room", "problem"),
        ({"brokers": [replace(BROKER, disk_ratio=0.8)]}, "disk room", "note"),
        ({"brokers": [replace(BROKER, refusals={"disk_full": 3, "age": 5})]}, "refusals", "note"),
        ({"scheduler": SchedulerInfo(None, None)}, "scheduler", "note"),
        ({"scheduler": SchedulerInfo(9, 5.0)}, "scheduler", "problem"),
    ],
)
def test_cluster_check_reports_each_fault(changes: dict[str, Any], check: str, severity: str) -> None:
    found = worst_severities(broker_checks.check_cluster(replace(CLUSTER, **changes), {}))
    assert found.pop(check) == severity
    assert set(found.values()) <= {"fine"}


@pytest.mark.parametrize(
    ("figures", "check", "severity"),
    [
        ({"setAside_retry": "3", "setAside_pop": "0"}, "undeliverable messages", "note"),
        ({"setAside_retry": "x"}, "undeliverable messages", "fine"),
        ({"loopLongestStopMillisRecently": "2500.0"}, "stops", "note"),
    ],
)
def test_broker_figures_become_check_results(figures: dict[str, str], check: str, severity: str) -> None:
    assert worst_severities(broker_checks.check_cluster(CLUSTER, {"h:1": figures}))[check] == severity


def test_broker_that_is_away_for_long_is_to_be_forgotten() -> None:
    away = replace(BROKER, name="broker-b", state="unreachable", address="")
    (found,) = [each for each in broker_checks.check_reachable(replace(CLUSTER, brokers=[away])) if each.remedy]
    assert "its address is not known" in found.found
    assert "raymq broker forget broker-b --yes" in found.remedy


def test_replica_that_is_away_for_long_is_to_be_removed() -> None:
    here = replace(BROKER, in_sync=[0], replicas=[0, 1])
    away = replace(BROKER, replica=1, role="replica", state="unreachable", address="")
    results = list(broker_checks.check_cluster(replace(CLUSTER, brokers=[here, away]), {}))
    found = {each.check: each for each in results if not each.ok}
    assert f"raymq broker remove {BROKER.name}.1" in found["sockets"].remedy
    assert "1 (unreachable)" in found["in sync"].found


@pytest.mark.parametrize(("used", "severity"), [(0.3, "fine"), (0.8, "note"), (0.92, "note"), (0.95, "problem")])
def test_disk_room_is_judged_by_the_brokers_own_limit(used: float, severity: str) -> None:
    cluster = replace(CLUSTER, brokers=[replace(BROKER, disk_ratio=used)])
    results = list(broker_checks.check_cluster(cluster, {BROKER.address: {"diskRefuseRatio": "0.95"}}))
    assert worst_severities(results).get("disk room", "fine") == severity
    assert severity != "note" or any("95%" in each.remedy for each in results)


def test_version_check_ignores_unreachable_brokers() -> None:
    away = replace(BROKER, name="broker-b", state="unreachable", version="")
    mixed = replace(BROKER, name="broker-c", version="9.8.7")
    here = replace(BROKER, version="9.8.6")
    assert broker_checks.check_versions(replace(CLUSTER, brokers=[here, away])).severity is Severity.FINE
    found = broker_checks.check_versions(replace(CLUSTER, brokers=[here, away, mixed]))
    assert "RayMQ 9.8.6: broker-a; RayMQ 9.8.7: broker-c" in found.found


def test_orphaned_broker_processes_are_reported() -> None:
    good = ProcessInfo(1, "ray::Broker", "raylet")
    assert worst_severities(process_checks.check_orphans([good], "h")) == {"orphaned processes": "fine"}
    for parent in ("", "init", "systemd"):
        (found,) = process_checks.check_orphans([good, ProcessInfo(2, "ray::Broker.status", parent)], "h")
        assert (found.severity, found.where) == (Severity.PROBLEM, "h: process 2")
    other = ProcessInfo(3, "ray::BrokerOfSomebody", "")
    assert worst_severities(process_checks.check_orphans([other], "h")) == {"orphaned processes": "fine"}


SEEN = StoreInfo("/data/broker-a", 7, "ray::Broker", address="h:1")
SILENT = replace(BROKER, state="unreachable", store="", pid=0)


@pytest.mark.parametrize(
    ("changes", "known", "check", "severity", "says"),
    [
        ({}, [BROKER], "locks", "fine", "broker-a"),
        ({}, [replace(BROKER, pid=8)], "locks", "problem", "process 8"),
        ({}, [SILENT], "locks", "problem", "may be stopped"),
        ({}, [], "locks", "problem", "no broker of the running cluster"),
        ({}, None, "locks", "note", "process 7"),
        ({"is_orphan": True}, None, "locks", "problem", "Ray node is gone"),
        ({"is_orphan": True}, [BROKER], "locks", "problem", "Ray node is gone"),
        ({"holder": 0}, None, "locks", "note", "not visible"),
        ({"holder": 0}, [], "locks", "note", "not visible"),
        ({"holder": None}, None, "locks", "fine", "closed cleanly"),
        ({"holder": None, "was_closed": False}, None, "locks", "note", "a start recovers"),
        ({"holder": None}, [BROKER], "locks", "problem", "no process"),
        ({"holder": None}, [SILENT], "locks", "problem", "no process"),
        ({"is_restoring": True}, [BROKER], "directories", "problem", "restore of a backup"),
        ({"too_new": FormatTooNew("/x", 2, 1, "9.0")}, [BROKER], "formats", "problem", "RayMQ 9.0 in format 2"),
        ({"foreign": ("/data/broker-a/lock",)}, [BROKER], "owners", "problem", "another user"),
        ({"holder": None, "address_is_taken": True}, None, "ports", "problem", "h:1"),
    ],
)
def test_store_check_reports_each_fault(
    changes: dict[str, Any], known: list[BrokerInfo] | None, check: str, severity: str, says: str
) -> None:
    found = list(store_checks.check_store(replace(SEEN, **changes), known, "h"))
    expected = next(each for each in found if each.check == check and each.severity.value == severity)
    assert says in expected.found
    others = worst_severities(each for each in found if each is not expected)
    assert "problem" not in others.values()


def test_check_result_fields_have_the_documented_names() -> None:
    finding = CheckResult("locks", Severity.NOTE, "x", "here", "do")
    expected = {"check": "locks", "ok": True, "severity": "note", "found": "x", "where": "here", "remedy": "do"}
    assert finding.fields() == expected
