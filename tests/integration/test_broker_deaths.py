"""Test the death of a broker: the message on the terminal, and the process in which it restarts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from raymq import cluster
from raymq.actors.spare_process import SPARE_PROCESS
from raymq.client import Admin
from tests.polling import poll_until
from tests.program import run
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.integration, pytest.mark.ray]

PROGRAM = """
import os, signal, sys, threading, time
from raymq import cluster
from raymq.client import Admin, Message, Producer

with cluster.start(brokers=1, root=sys.argv[1], namespace="deaths") as mq:
    Admin(mq).create_topic("t")
    os.kill(Admin(mq).cluster_info().brokers[0].pid, signal.SIGKILL)
    Producer(mq, "p", timeout=60).send(Message("t", b"x"))
    time.sleep(0.5)
    for each in threading.enumerate():
        if each.name == "raymq-death":
            each.join(60)
"""


def test_broker_death_prints_one_line(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", PROGRAM, str(tmp_path), environment=os.environ | {"RAY_ADDRESS": "local"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert re.fullmatch(r"broker-a \(process \d+\) died; it was back after [\d.]+ s\n", done.stderr)


def idle_processes_after(pid: int) -> set[int]:
    """Return the idle worker processes of a broker's Ray that started after the broker."""
    broker = psutil.Process(pid)
    found = set()
    for each in psutil.Process(broker.ppid()).children():
        with contextlib.suppress(psutil.Error):
            if each.cmdline()[:1] == ["ray::IDLE"] and each.create_time() > broker.create_time() + 0.5:
                found.add(each.pid)
    return found


def broker_pids(admin: Admin) -> set[int]:
    return {each.pid for each in admin.cluster_info().brokers if each.pid}  # an offline broker has no pid


def test_broker_restarts_in_spare_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARE_PROCESS, "1")
    monkeypatch.setenv("RAY_preload_python_modules", "raymq.actors.broker_actor")  # otherwise the start would set it
    with own_ray(cpus=2), cluster.start(brokers=2, root=tmp_path, namespace="spare") as mq:
        admin = Admin(mq)
        for _ in range(4):  # on a busy machine Ray may end the idle process first
            before = broker_pids(admin)
            first = min(before)
            idle = poll_until(lambda: idle_processes_after(first), 60, "a spare process")  # noqa: B023 - called at once
            os.kill(first, signal.SIGKILL)
            new = poll_until(lambda: broker_pids(admin) - before, 60, "a broker that is back")  # noqa: B023 - called at once
            if new & idle:
                return
    pytest.fail("no broker came back in a spare process")
