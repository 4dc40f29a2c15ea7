"""The cluster for RocketMQ's own clients: two brokers on a Ray of the module's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq import cluster
from raymq.cluster import Cluster
from tests.ray_cluster import own_ray

JAVA_SUITE = Path(__file__).resolve().parent / "java"

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
#: The settings that the suite's README requires beyond the defaults.
CONFIG = {"auto_create_topics": True, "append_wait_ms": 3_000, "index_slots": 10_000, "index_entries": 1_000_000}


@pytest.fixture(scope="module")
def java_suite() -> Path:
    """Return the built folder of the Java suite; skip the test without Maven and a JDK."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("mvn and a JDK (11 or newer) are needed to run RocketMQ's own clients")
    if not (JAVA_SUITE / "target" / "interop.jar").is_file() or not (JAVA_SUITE / "target" / "lib").is_dir():
        subprocess.run(["mvn", "-q", "-B", "package"], cwd=JAVA_SUITE, check=True, timeout=600)
    return JAVA_SUITE


@pytest.fixture(scope="module")
def mq(java_suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("interop")
    # Java's 60 s per case are meant for a machine of its own; names of different runs do not collide.
    os.environ.setdefault("INTEROP_TIMEOUT_S", "120")
    with own_ray(), cluster.start(brokers=2, root=root, namespace="interop", config=CONFIG) as started:
        yield started


def mqadmin(java_suite: Path, *arguments: str) -> str:
    """Return the output of RocketMQ's command line tool, of the built Java suite."""
    home = java_suite / "target" / "home"
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", "-cp", "target/lib/*"]
    ran = subprocess.run(
        [*java, MQADMIN, *arguments],
        cwd=java_suite,
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = ran.stdout + ran.stderr
    assert "Exception" not in output, output
    return output
