"""Test `raymq doctor` on Ray: a healthy cluster has no findings, and each planted fault is located."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import Admin
from raymq.cluster import Cluster
from raymq.cluster.cli import main_group
from raymq.storage.store import Store
from tests.polling import poll_until
from tests.ray_cluster import own_cluster

pytestmark = [pytest.mark.integration, pytest.mark.ray]

HOLDER = """
import sys
from raymq.storage.store import Store
with Store.open(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with own_cluster(tmp_path_factory, "doctor", {}) as cluster:
        yield cluster


#: Checks that do not depend on the machine of the tests.
CLUSTER_CHECKS = {
    *("ray", "cluster", "sockets", "actors", "nodes", "locks", "owners", "ports", "directories"),
    *("in sync", "keepers", "corruption", "clocks"),
}


def doctor(*options: str, common: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run the doctor with --json and check its exit code, which is 1 if there is a problem."""
    result = CliRunner().invoke(main_group, [*common, "doctor", *options, "--json"], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found: list[dict[str, Any]] = json.loads(result.stdout)
    assert result.exit_code == (0 if all(each["ok"] for each in found) else 1)
    for each in found:
        assert {"check", "ok", "found", "remedy"} <= each.keys()
    return found


def select_findings(found: list[dict[str, Any]], check: str, severity: str) -> list[str]:
    return [
        f"{each['where']}: {each['found']}" for each in found if (each["check"], each["severity"]) == (check, severity)
    ]


@contextlib.contextmanager
def store_holder(directory: Path) -> Iterator[int]:
    """Yield the pid of a process that has a store open and is no broker."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, directory], text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "open\n"
        yield process.pid
        process.kill()


def test_doctor_finds_planted_faults(running: Cluster, tmp_path: Path) -> None:
    common = ("--namespace", str(running.namespace))
    with Admin(running) as admin:
        admin.create_topic("t", queues=1)
        (broker, other) = admin.cluster_info().brokers
    poll_until(lambda: scheduler_runs(running))
    healthy = doctor(common=common)
    assert [each for each in healthy if not each["ok"] and each["check"] in CLUSTER_CHECKS] == []
    assert {each["check"] for each in healthy} >= {
        *("ray", "ray version", "sockets", "actors", "clocks", "locks", "disk speed", "orphaned processes", "scheduler")
    }
    assert len(select_findings(healthy, "locks", "fine")) == 2
    assert len(select_findings(healthy, "clocks", "fine")) == 3, "two brokers and a node"
    with Store.open(tmp_path / "stale"):
        pass
    with (
        store_holder(tmp_path / "stale") as holder,
        subprocess.Popen(["ray::Broker", "-"], executable="/bin/cat", stdin=subprocess.PIPE) as orphan,
    ):
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            found = doctor("--root", str(tmp_path), common=common)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            orphan.kill()
    host = socket.gethostname()
    assert any(broker.address in each for each in select_findings(found, "sockets", "problem"))
    assert any(
        each.startswith(f"{running.namespace}: {broker.name} ") for each in select_findings(found, "actors", "problem")
    )
    locks = select_findings(found, "locks", "problem")
    assert any(f"process {broker.pid}" in each and "may be stopped" in each for each in locks)
    assert any(f"process {holder}" in each and "no broker of the running" in each for each in locks)
    assert len(locks) == 2
    orphans = select_findings(found, "orphaned processes", "problem")
    assert any(each.startswith(f"{host}: process {orphan.pid}: ray::Broker runs") for each in orphans)
    assert any(other.name in each for each in select_findings(found, "locks", "fine"))


def scheduler_runs(mq: Cluster) -> bool:
    with Admin(mq) as admin:
        return admin.cluster_info().scheduler.pid is not None


def test_doctor_without_cluster_checks_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_ADDRESS", "")
    found = doctor("--no-ray", "--root", str(tmp_path), common=("--namespace", "nowhere"))
    assert any("only this machine" in each for each in select_findings(found, "cluster", "note"))
    found = doctor("--no-ray", common=("--name-servers", "127.0.0.1:1"))
    assert select_findings(found, "cluster", "problem")


def test_doctor_with_missing_root_exits_with_2() -> None:
    result = CliRunner().invoke(main_group, ["doctor", "--root", "/nowhere/at/all"])
    assert result.exit_code == 2
