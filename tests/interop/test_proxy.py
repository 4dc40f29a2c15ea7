"""RocketMQ's proxy 5.3.3 in front of a cluster of ours, used by the official Python client for gRPC."""

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

from raymq.client import Admin, Connection
from tests.integration.conftest import Services
from tests.polling import poll_until

HERE = Path(__file__).resolve().parent / "proxy"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION", "retried": "NORMAL"}


@dataclass(frozen=True)
class Proxy:
    """A running proxy: its gRPC endpoint, and the Python of the client's environment."""

    endpoint: str
    python: Path


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("mvn and a JDK (11 or newer) are needed to run RocketMQ's proxy")
    folder = tmp_path_factory.mktemp("proxy")
    python = client_environment()
    services = Services(folder / "stores", transaction_check_after=2.0, transaction_check_every=2.0)
    services.start()
    try:
        with Connection([services.name_server.address]) as mq, Admin(mq) as admin:
            for topic, message_type in TOPICS.items():
                admin.create_topic(topic, queues=2, message_type=message_type)
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
            yield Proxy(f"127.0.0.1:{port}", python)
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


def client_environment() -> Path:
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


@pytest.mark.parametrize(
    "case", ["normal", "fifo", "delay", "recall", "transaction", "check", "type", "invisible", "retry"]
)
def test_python_grpc_client(proxy: Proxy, case: str) -> None:
    ended = subprocess.run(
        [str(proxy.python), str(HERE / "client.py"), proxy.endpoint, case],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["passed"]), ended.stdout + ended.stderr
