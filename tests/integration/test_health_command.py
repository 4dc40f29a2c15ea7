"""Test `raymq health`, and the probes and log lines of `raymq worker`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.consumer_health import FailingFetch, Health, RunningCall
from raymq.cluster.cli import main_group
from raymq.cluster.health_server import HealthServer, ProbeAnswer, consumer_liveness, consumer_readiness
from tests.integration.conftest import Services
from tests.integration.shell import Shell
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)
MODULE = """
def on_order(messages):
    raise ValueError("no such account")
"""


def health(mq: Connection, *options: str) -> tuple[int, Any]:
    line = ["--name-servers", ";".join(mq.name_servers), "health", "--json", *options]
    done = CliRunner().invoke(main_group, line, catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)


def status_of(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()) if error.code == 503 else None


def test_health_of_a_cluster(shell: Shell, mq: Connection, admin: Admin, services: Services) -> None:
    code, found = health(mq)
    assert (code, found["ok"]) == (0, True)
    assert {"check": "broker broker-b replica 0", "ok": True, "found": "running"} in found["checks"]
    assert health(mq, "--ready", "--brokers", "2")[0] == 0
    assert "a master serves" in shell.shown("health", "--ready")
    services.stop_broker("broker-b")
    code, found = health(mq, "--ready", "--brokers", "2")
    assert (code, found["ok"]) == (1, False)
    assert {"check": "broker groups", "ok": False, "found": "1 of 2 are registered"} in found["checks"]
    code, found = health(mq, "--ready")
    assert code == 1
    assert {"check": "broker group broker-b", "ok": False, "found": "no master serves"} in found["checks"]
    code, found = health(mq)
    assert code == 1
    assert {"check": "broker broker-b replica 0", "ok": False, "found": "unreachable"} in found["checks"]
    admin.forget_broker("broker-b")
    assert health(mq)[0] == health(mq, "--ready")[0] == 0
    assert shell.exit_code("health", "--brokers", "2") == 2


def test_health_server_answers_probes() -> None:
    probes = {
        "/healthz": lambda: ProbeAnswer(ok=True, details={"running": True}),
        "/readyz": lambda: ProbeAnswer(ok=False, details={}),
    }
    with HealthServer(0, probes, "127.0.0.1") as server:
        assert status_of(f"http://127.0.0.1:{server.port}/healthz") == (200, {"ok": True, "running": True})
        assert status_of(f"http://127.0.0.1:{server.port}/readyz?a=b") == (503, {"ok": False})
        assert status_of(f"http://127.0.0.1:{server.port}/../etc/passwd")[0] == 404


def test_probes_of_consumers() -> None:
    well, fails = Health(running=True), [FailingFetch("broker-a", 9, 60.0, "gone")]
    hangs = Health(running=True, hanging=[RunningCall(QUEUE, 400.0)])
    assert (consumer_liveness(well).ok, consumer_readiness(well).ok) == (True, True)
    assert (consumer_liveness(hangs).ok, consumer_readiness(hangs).ok) == (False, True)
    assert not consumer_readiness(Health(running=True, fetches=fails)).ok
    assert not consumer_readiness(Health(running=False)).ok


def test_worker_answers_probes_and_logs_json(mq: Connection, admin: Admin, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"), queue=QUEUE)
    program = [sys.executable, "-c", "from raymq.cluster.command import main; main()"]
    program += ["--name-servers", ";".join(mq.name_servers), "--log-format", "json", "worker", "shop:on_order"]
    program += ["--group", "g", "--topic", "t", "--health-port", "0"]
    pipe: Any = subprocess.PIPE
    with subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().split("localhost:")[1].split("/")[0])
        poll_until(lambda: status_of(f"http://127.0.0.1:{port}/readyz")[0] == 200, 30)
        assert status_of(f"http://127.0.0.1:{port}/healthz")[1]["running"] is True
        logged = {}
        while "no such account" not in logged.get("message", "") + logged.get("exception", ""):
            line = process.stderr.readline()
            logged = json.loads(line) if line.startswith("{") else {}
        assert (logged["level"], logged["logger"]) == ("WARNING", "raymq.consumer")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stderr.read()


def test_worker_refuses_a_used_port(mq: Connection, admin: Admin, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "another_shop.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with HealthServer(0, {}) as server:
        line = ["--name-servers", ";".join(mq.name_servers), "worker", "another_shop:on_order", "--group", "g"]
        done = CliRunner().invoke(main_group, [*line, "--topic", "t", "--health-port", str(server.port)])
    assert done.exit_code == 1
    assert "a free port" in str(done.exception)
