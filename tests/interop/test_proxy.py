"""RocketMQ's proxy 5.3.3 in front of a cluster of ours, used by the official gRPC clients of Python and Java."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Connection
from raymq.client.requests import fan_out
from tests.integration.conftest import Services
from tests.polling import poll_until

HERE = Path(__file__).resolve().parent / "proxy"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION", "retried": "NORMAL"}


@dataclass(frozen=True)
class Proxy:
    """A running proxy: its gRPC endpoint, the start of each client's command, and the name server behind it."""

    endpoint: str
    clients: dict[str, list[str]]
    name_server: str


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("mvn and a JDK (11 or newer) are needed to run RocketMQ's proxy")
    folder = tmp_path_factory.mktemp("proxy")
    clients = {
        "python": [str(python_environment()), str(HERE / "client.py")],
        "java": ["java", "-Xmx256m", f"-Duser.home={folder}", "-cp", f"{java_client()}/*", str(HERE / "Client.java")],
    }
    services = Services(folder / "stores", transaction_check_after=2.0, transaction_check_every=2.0)
    services.start()
    try:
        with Connection([services.name_server.address]) as mq, Admin(mq) as admin:
            for topic, message_type in TOPICS.items():
                admin.create_topic(topic, queues=2, message_type=message_type)
            for client in clients:
                update_group(mq, f"fifo-{client}", consumeMessageOrderly=True)
                update_group(mq, f"dead-{client}", retryMaxTimes=1)
        port, remoting_port = free_port(), free_port()
        config = folder / "rmq-proxy.json"
        config.write_text(
            json.dumps(
                {
                    "rocketMQClusterName": "test",
                    "namesrvAddr": services.name_server.address,
                    "proxyMode": "CLUSTER",
                    "grpcServerPort": port,
                    "remotingListenPort": remoting_port,
                }
            )
        )
        home = folder / "home"
        (home / "conf").mkdir(parents=True)
        log = (folder / "proxy.txt").open("w")
        java = ["java", "-Xmx512m", f"-Duser.home={home}", "-cp", f"{proxy_jars()}/*"]
        program = subprocess.Popen(
            [*java, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RMQ_PROXY_HOME": str(home), "ROCKETMQ_HOME": str(home)},
        )
        try:
            started = "startup successfully"
            poll_until(lambda: started in (folder / "proxy.txt").read_text(), 120, "the proxy is started")
            yield Proxy(f"127.0.0.1:{port}", clients, services.name_server.address)
        finally:
            program.kill()
            program.wait()
            log.close()
    finally:
        services.stop()


def proxy_jars() -> Path:
    """Return the folder of the proxy's jars, from Maven's repository."""
    folder = HERE / "target" / "lib"
    if not folder.is_dir():
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(command, cwd=HERE, check=True, timeout=600)
    return folder


def java_client() -> Path:
    """Return the folder with the jar of the official Java client for gRPC."""
    folder = HERE / "target" / "client-java"
    if not folder.is_dir():
        artifact = "org.apache.rocketmq:rocketmq-client-java:5.1.0"
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
        subprocess.run(command, cwd=HERE, check=True, timeout=600)
    return folder


def python_environment() -> Path:
    """Return the Python of an environment with the official client."""
    folder = HERE / "target" / "venv"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
        requirements = str(HERE / "requirements.txt")
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", requirements], check=True, timeout=600)
        (folder / ".complete").touch()
    return python


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def update_group(mq: Connection, group: str, **config: object) -> None:
    """Set the configuration of a group on all brokers, as `mqadmin updateSubGroup` does."""
    command = Command(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps({"groupName": group, **config}).encode()
    )
    for broker, address in mq.run(fan_out.masters(mq)).items():
        mq.run(fan_out.request_with_retry(mq, address, lambda: command, broker))


def run_case(proxy: Proxy, client: str, case: str) -> None:
    ended = subprocess.run(
        [*proxy.clients[client], proxy.endpoint, case], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["passed"]), ended.stdout + ended.stderr


@pytest.mark.parametrize("client", ["python", "java"])
@pytest.mark.parametrize(
    "case", ["normal", "fifo", "delay", "recall", "transaction", "check", "type", "invisible", "retry"]
)
def test_grpc_client(proxy: Proxy, client: str, case: str) -> None:
    run_case(proxy, client, case)


@pytest.mark.parametrize("client", ["python", "java"])
def test_grpc_client_dead_letter(proxy: Proxy, client: str) -> None:
    run_case(proxy, client, "dead")
    with Connection([proxy.name_server]) as mq, Admin(mq) as admin:
        assert [each.body for each in admin.dlq_list(f"dead-{client}")] == [f"{client} always fails".encode()]
