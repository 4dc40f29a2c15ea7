"""Test Apache's rocketmq-client-go (2.1.2) against a RayMQ cluster."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin
from raymq.cluster import Cluster
from tests.interop.conftest import CONFIG
from tests.ray_cluster import own_ray

GO = Path(__file__).resolve().parent / "go"
GO_CONFIG = {**CONFIG, "transaction_check_after": 2.0, "transaction_check_every": 2.0}

pytestmark = [pytest.mark.ray, pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built program of the folder go; skip the test without Go or its modules."""
    if shutil.which("go") is None:
        pytest.skip("Go (1.21 or newer) is needed to run rocketmq-client-go")
    built = tmp_path_factory.mktemp("go") / "interop"
    command = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(built), "."]
    ran = subprocess.run(command, cwd=GO, capture_output=True, text=True, timeout=400, check=False)
    unreachable = any(sign in ran.stderr for sign in ("dial tcp", "lookup", "i/o timeout"))
    if ran.returncode != 0 and unreachable:
        pytest.skip(f"rocketmq-client-go's modules are not here and cannot be fetched: {ran.stderr.splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    return built


@pytest.fixture(scope="module")
def go_cluster(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assert program.is_file()
    root = tmp_path_factory.mktemp("go_cluster")
    with own_ray(), cluster.start(brokers=2, root=root, namespace="interop_go", config=GO_CONFIG) as started:
        yield started


def run_case(program: Path, mq: Cluster, case: str, topic: str) -> str:
    """Return the program's result in one case."""
    command = [str(program), ";".join(mq.name_servers), case, topic]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    results = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(results) == 1, ran.stdout + ran.stderr
    return results[0]


@pytest.mark.parametrize("number", range(3))
def test_restarted_go_consumer_gets_no_finished_message(program: Path, go_cluster: Cluster, number: int) -> None:
    topic = f"restart_{number}"
    Admin(go_cluster).create_topic(topic, queues=4)
    assert run_case(program, go_cluster, "restart", topic) == "again=0"


@pytest.mark.parametrize("number", range(3))
def test_go_request_gets_reply(program: Path, go_cluster: Cluster, number: int) -> None:
    topic = f"request_{number}"
    Admin(go_cluster).create_topic(topic, queues=4)
    assert run_case(program, go_cluster, "request", topic) == "reply=answer to question"


def test_go_transactions_are_visible_if_committed(program: Path, go_cluster: Cluster) -> None:
    Admin(go_cluster).create_topic("transactions", queues=4, message_type="TRANSACTION")
    assert run_case(program, go_cluster, "transaction", "transactions") == "visible=21 of 21, deliveries=21"
