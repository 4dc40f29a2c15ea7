"""Test the keepers of a cluster on Ray: first start, restart, kill, and rejoin after a lost disk."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray
from click.testing import CliRunner
from ray.cluster_utils import Cluster as RayCluster

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.client import Admin, Connection
from raymq.client.results import KeeperInfo
from raymq.cluster import cluster_launch, keeper_bootstrap
from raymq.cluster.cli import main_group
from raymq.cluster.cluster_config import ClusterConfig
from raymq.cluster.cluster_stop import stop_actors
from raymq.storage.files import json_file
from tests.polling import poll_until
from tests.ray_cluster import own_ray
from tests.unit.actors.keeper.in_memory_keepers import group

pytestmark = [pytest.mark.integration, pytest.mark.ray]

NAMESPACE = "kept"
T = TypeVar("T")


def start_cluster(root: Path, replicas: int = 2) -> Connection:
    """Start a cluster as `cluster.start` does."""
    arguments = {
        "brokers": 1,
        "root": str(root),
        "replicas": replicas,
        "name_servers": 1,
        "port": 0,
        "config": ClusterConfig.load(None).as_dict(),
    }
    return Connection(cluster_launch.start(NAMESPACE, root, ClusterConfig.load(None), arguments).name_servers)


def keepers_of(mq: Connection) -> list[KeeperInfo]:
    return Admin(mq).cluster_info().keepers


def load_keeper_set(root: Path) -> KeeperSet:
    layout = json_file.load_as(root / keeper_bootstrap.LAYOUT_FILE, keeper_bootstrap.KeeperLayout.from_json)
    assert layout is not None
    return layout.known


def run_on_register(keepers: KeeperSet, act: Callable[[KeeperRegister], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        transport = SocketQuorumTransport(keepers)
        try:
            return await act(KeeperRegister(keepers, transport))
        finally:
            await transport.close()

    return asyncio.run(run())


@pytest.mark.long
def test_keeper_with_lost_disk_rejoins_its_cluster(tmp_path: Path, repository: Path) -> None:
    """Run in a separate process: Ray fixes the authentication mode of a process, and several nodes need none."""
    folder = tempfile.mkdtemp(prefix="raymq-")  # a short path, since it contains sockets
    program = "import sys, pathlib; from tests.integration.test_keepers import three_hosts; "
    program += "three_hosts(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-3_000:] + ended.stderr[-3_000:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def three_hosts(root: Path) -> None:
    hosts = RayCluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"broker_h1": 1}})
    try:
        for name in ("h2", "h3"):
            hosts.add_node(num_cpus=1, resources={f"broker_{name}": 1})
        ray.init(hosts.address, log_to_driver=False)
        with start_cluster(root) as mq:
            found = keepers_of(mq)
            assert [(each.id, each.voter, each.state) for each in found] == [
                (number, True, "running") for number in (1, 2, 3)
            ]
            layout = json_file.load(root / keeper_bootstrap.LAYOUT_FILE)
            assert sorted(layout["resources"].values()) == ["broker_h1", "broker_h2", "broker_h3"]
            made = run_on_register(load_keeper_set(root), lambda register: register.change("g", Registered(), group()))
        stop_actors(NAMESPACE, 30.0)
        (root / "keeper-2.record").unlink()
        before = load_keeper_set(root)
        with start_cluster(root) as mq:
            assert [each.voter for each in keepers_of(mq)] == [True, True, True]
            after = load_keeper_set(root)
            assert after.members[2].incarnation != before.members[2].incarnation
            assert run_on_register(before, lambda register: register.read("g")) == made, (
                "who knows the set of before is told"
            )
            assert run_on_register(after, lambda register: register.read("g")) == made
        stop_actors(NAMESPACE, 30.0)
    finally:
        ray.shutdown()
        hosts.shutdown()


@pytest.fixture(scope="module")
def one_host() -> Iterator[None]:
    with own_ray():
        yield


def test_cluster_without_replicas_has_no_keepers(one_host: None, tmp_path: Path) -> None:
    with start_cluster(tmp_path, replicas=1) as mq:
        assert keepers_of(mq) == []
    stop_actors(NAMESPACE, 30.0)
    assert not (tmp_path / keeper_bootstrap.LAYOUT_FILE).exists()


@pytest.mark.long
def test_single_keeper_restarts_with_its_register(one_host: None, tmp_path: Path) -> None:
    with start_cluster(tmp_path) as mq:
        (first,) = keepers_of(mq)
        assert (first.id, first.voter, first.state) == (1, True, "running")
        made = run_on_register(load_keeper_set(tmp_path), lambda register: register.change("g", Registered(), group()))
        listed = CliRunner().invoke(main_group, ["--name-servers", mq.name_servers[0], "cluster", "status", "--json"])
        assert json.loads(listed.stdout)["keepers"][0]["address"] == first.address
        shown = CliRunner().invoke(main_group, ["--name-servers", mq.name_servers[0], "cluster", "status"])
        assert first.address in shown.stdout
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)

        def back() -> KeeperInfo | None:
            (now,) = keepers_of(mq)
            return now if now.pid not in (first.pid, None) else None

        again = poll_until(back, 60.0)
        assert (again.address, again.voter) == (first.address, True)
        assert run_on_register(load_keeper_set(tmp_path), lambda register: register.read("g")) == made
    stop_actors(NAMESPACE, 30.0)
    assert not cluster_launch.names(NAMESPACE)
    with start_cluster(tmp_path):
        assert run_on_register(load_keeper_set(tmp_path), lambda register: register.read("g")) == made
    stop_actors(NAMESPACE, 30.0)
    (tmp_path / "keeper-1.record").unlink()
    with pytest.raises(BrokerUnavailable, match="the register is lost"):
        start_cluster(tmp_path)
    stop_actors(NAMESPACE, 30.0)
