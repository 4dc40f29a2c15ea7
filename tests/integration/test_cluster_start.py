"""Test cluster starts and stops with obstacles: taken ports, locked stores, foreign actors, unfinished starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner

from raymq import cluster
from raymq.actors.actor_options import make_name_server
from raymq.actors.naming import broker_name, name_server_name
from raymq.actors.protocol import NameServerSpec
from raymq.client import Admin, BrokerUnavailable, InvalidInput, Message, Producer, RayMQError, StoreLocked
from raymq.cluster import cluster_file, cluster_launch, ray_runtime
from raymq.cluster.cli import main_group
from raymq.cluster.cluster_file_check import verified_name_servers
from raymq.cluster.cluster_stop import stop_actors
from raymq.storage.errors import StoreFailed
from raymq.storage.store import Store
from tests.certificates import certificates
from tests.chaos.actors import kill
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.integration, pytest.mark.ray]


@pytest.fixture(scope="module", autouse=True)
def with_ray() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture(autouse=True)
def raymq_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only 0.5 s instead of 5 s, as the obstacles do not go away."""
    monkeypatch.setattr(cluster_launch, "PATIENCE_SECONDS", 0.5)


@contextlib.contextmanager
def occupy_port(host: str, port: int) -> Iterator[None]:
    """Bind another socket to the port as soon as it is free."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def bind() -> bool:
            with contextlib.suppress(OSError):
                other.bind((host, port))
                other.listen()
                return True
            return False

        poll_until(bind, 10)
        yield


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_start_uses_loopback_home_folder_and_private_file(
    tmp_path: Path, raymq_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check loopback, the expanded "~" and the private cluster file, removed on stop."""
    port = free_port()
    monkeypatch.setenv("HOME", str(tmp_path))
    with cluster.start(brokers=1, root="~/data", namespace="loopback", port=port) as mq:
        assert mq.name_servers == [f"127.0.0.1:{port}"]
        assert Admin(mq).cluster_info().brokers[0].address.startswith("127.0.0.1:")
        assert (tmp_path / "data" / broker_name(0)).is_dir()
        known = cluster_file.load("loopback")
        assert known is not None
        assert list(known.name_servers) == mq.name_servers
        assert verified_name_servers("loopback", known, known.tls) == mq.name_servers
        assert (raymq_home / "loopback.json").stat().st_mode & 0o777 == 0o600
    assert cluster_file.load("loopback") is None


@ray.remote(num_cpus=0)
class ForeignActor:
    """Act as a user's own actor, without any RayMQ method."""

    def alive(self) -> bool:
        return True


@pytest.mark.usefixtures("impatient")
@pytest.mark.long
def test_taken_port_is_named_and_foreign_actors_survive(tmp_path: Path) -> None:
    theirs = ForeignActor.options(name="theirs", namespace="shared", lifetime="detached").remote()  # type: ignore[attr-defined]
    ray.get(theirs.alive.remote())
    port = free_port()
    with occupy_port("127.0.0.1", port), pytest.raises(BrokerUnavailable) as caught:
        cluster.start(brokers=1, root=tmp_path / "data", namespace="shared", port=port)
    first = str(caught.value).splitlines()[0]
    assert f"127.0.0.1:{port}" in first
    assert "Address already in use" in first
    assert "\x1b" not in first
    poll_until(lambda: cluster_launch.names("shared") == ["theirs"], 10)
    assert ray.get(theirs.alive.remote(), timeout=10)
    with cluster.start(brokers=1, root=tmp_path / "data", namespace="shared"):
        pass
    assert ray.get(theirs.alive.remote(), timeout=10)
    assert cluster_launch.names("shared") == ["theirs"]
    ray.kill(theirs)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_locked_store_error_names_owner_process(tmp_path: Path) -> None:
    with cluster.start(brokers=1, root=tmp_path / "other", namespace="healthy") as healthy:
        with Store.open(tmp_path / "data" / "broker-a"), pytest.raises(StoreLocked) as caught:
            cluster.start(brokers=2, root=tmp_path / "data", namespace="locked")
        assert caught.value.pid == os.getpid()
        poll_until(lambda: cluster_launch.names("locked") == [], 10)
        assert [broker.state for broker in Admin(healthy).cluster_info().brokers] == ["running"]
    with cluster.start(brokers=2, root=tmp_path / "data", namespace="locked") as mq:
        assert len(Admin(mq).cluster_info().brokers) == 2


@pytest.mark.long
def test_start_reopens_brokers_of_host_after_leave(tmp_path: Path) -> None:
    """Cover a regression: the start waited two minutes for those brokers and failed."""
    with cluster.start(brokers=1, root=tmp_path / "data", namespace="stays") as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=1)
        leave = ["--namespace", "stays", "cluster", "leave", "--json"]
        shown = CliRunner().invoke(main_group, [*leave, "--dry-run"])
        assert shown.exit_code == 0, shown.output
        assert [each.state for each in admin.cluster_info().brokers] == ["running"]
        left = CliRunner().invoke(main_group, leave)
        assert [each["trouble"] for each in json.loads(left.stdout)] == [None]
        poll_until(lambda: [each.state for each in admin.cluster_info().brokers] == ["unreachable"], 20)
        cluster.start(brokers=1, root=tmp_path / "data", namespace="stays").close()
        assert [each.state for each in admin.cluster_info().brokers] == ["running"]
        assert admin.topics() == ["t"]


@pytest.mark.long
def test_broker_restart_waits_for_taken_port(tmp_path: Path) -> None:
    """Avoid a raising constructor, after which Ray never restarts an actor."""
    with cluster.start(brokers=1, root=tmp_path / "data", namespace="retaken") as mq:
        Admin(mq).create_topic("t", queues=1)
        address = Admin(mq).cluster_info().brokers[0].address
        host, _, port = address.rpartition(":")
        with Producer(mq, "p") as producer:
            producer.send(Message("t", b"before"))
            kill("broker-a", "retaken")
            with occupy_port(host, int(port)):
                handle = ray.get_actor("broker-a", namespace="retaken")

                def refused() -> bool:
                    with contextlib.suppress(ray.exceptions.RayError):
                        try:
                            ray.get(handle.status.remote(), timeout=5)
                        except RayMQError as error:
                            return "Address already in use" in str(error)
                    return False

                poll_until(refused, 30)
            poll_until(lambda: _sends(producer), 30)


def _sends(producer: Producer) -> bool:
    with contextlib.suppress(RayMQError):
        producer.send(Message("t", b"after"))
        return True
    return False


def test_start_creates_missing_brokers(tmp_path: Path) -> None:
    first = cluster.start(brokers=2, root=tmp_path / "data", namespace="half")
    first.close()
    ray.kill(ray.get_actor("broker-b", namespace="half"))
    poll_until(lambda: "broker-b" not in cluster_launch.names("half"), 10)
    with cluster.start(brokers=2, root=tmp_path / "data", namespace="half") as mq:
        poll_until(lambda: [b.state for b in Admin(mq).cluster_info().brokers] == ["running", "running"], 20)


@pytest.mark.long
def test_connect_refuses_unfinished_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a driver that was killed in the middle of its start."""
    (resource, host), *_ = ray_runtime.hosts()
    arguments = {"brokers": 2, "root": str(tmp_path / "data"), "replicas": 1, "name_servers": 1, "port": 0}
    arguments["config"] = cluster.bootstrap.ClusterConfig().as_dict()
    (tmp_path / "data").mkdir()
    spec = NameServerSpec(0, str(tmp_path / "data"), host, 0, arguments, None, "broken off")
    make_name_server(spec, "unfinished", resource)
    monkeypatch.setattr(cluster_launch, "FINISH_SECONDS", 2.0)
    with pytest.raises(BrokerUnavailable, match="was not finished; missing: broker-a, broker-b, scheduler"):
        cluster.connect("unfinished")
    with cluster.start(brokers=2, root=tmp_path / "data", namespace="unfinished"):
        with cluster.connect("unfinished") as joined:
            assert len(Admin(joined).cluster_info().brokers) == 2
        kill(name_server_name(0), "unfinished")
        poll_until(lambda: _connects("unfinished"), 30)


def _connects(namespace: str) -> bool:
    with contextlib.suppress(RayMQError):
        cluster.connect(namespace).close()
        return True
    return False


def test_concurrent_starts_create_one_cluster(tmp_path: Path) -> None:
    def start(_: int) -> Any:
        return cluster.start(brokers=2, root=tmp_path / "data", namespace="at-once")

    with ThreadPoolExecutor(3) as threads:
        started = list(threads.map(start, range(3)))
    assert len({tuple(mq.name_servers) for mq in started}) == 1
    for mq in started[1:]:
        mq.close()
    started[0].stop()


@ray.remote(num_cpus=0)
class FailsToStop:
    """Act as a broker whose stop fails at once."""

    def pid(self) -> int:
        return os.getpid()

    def stop(self) -> None:
        raise StoreFailed("the disk is gone")


def test_failed_stop_reports_cause_and_kills_actor() -> None:
    """Cover a regression: the error said "within 20 s" after one second."""
    broker = FailsToStop.options(name="broker-a", namespace="unclean", lifetime="detached").remote()  # type: ignore[attr-defined]
    ray.get(broker.pid.remote())
    with pytest.raises(BrokerUnavailable, match="and killed: broker-a: the disk is gone") as caught:
        stop_actors("unclean", 20)
    assert "20 s" not in str(caught.value)
    assert cluster_launch.names("unclean") == []


def test_unkillable_actor_does_not_block_stop_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover a regression: replicas, keepers and name servers behind it stayed up."""
    for name in ("broker-a", "name-server-0"):
        actor = FailsToStop.options(name=name, namespace="stays", lifetime="detached").remote()  # type: ignore[attr-defined]
        ray.get(actor.pid.remote())
    kill = cluster_launch.kill
    monkeypatch.setattr(
        cluster_launch, "kill", lambda namespace, names: kill(namespace, [each for each in names if each != "broker-a"])
    )
    with pytest.raises(
        BrokerUnavailable, match="broker-a did not end in time; not stopped cleanly, and killed: name-"
    ) as caught:
        stop_actors("stays", 4)
    assert caught.value.broker == "broker-a, name-server-0"
    assert cluster_launch.names("stays") == ["broker-a"]
    kill("stays", ["broker-a"])


@pytest.mark.long
def test_hanging_broker_does_not_block_clean_stop_of_others(tmp_path: Path) -> None:
    mq = cluster.start(brokers=2, root=tmp_path / "data", namespace="hangs")
    pids = {broker.name: broker.pid for broker in Admin(mq).cluster_info().brokers}
    os.kill(pids["broker-a"], signal.SIGSTOP)
    resume = threading.Timer(30, os.kill, (pids["broker-a"], signal.SIGCONT))
    resume.start()
    try:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"broker-a: no answer within \d") as caught:
            mq.stop(5)
        assert "broker-a" in caught.value.broker
        assert "broker-b" not in caught.value.broker
        assert time.monotonic() - began < 25
        aborts = {name: (tmp_path / "data" / name / "abort").exists() for name in pids}
        assert aborts == {"broker-a": True, "broker-b": False}
    finally:
        resume.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids["broker-a"], signal.SIGKILL)


@pytest.mark.parametrize("namespace", ["n" * 116, "", "a b", 7])
def test_invalid_namespace_is_refused(tmp_path: Path, namespace: Any) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        cluster.start(root=tmp_path, namespace=namespace)


def test_invalid_root_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for root in (file, file / "below", "", 7):
        with pytest.raises(InvalidInput) as caught:
            cluster.start(root=root, namespace="never")  # type: ignore[arg-type]
        assert caught.value.field == "root"


@pytest.mark.long
def test_renamed_host_keeps_broker_directories(tmp_path: Path) -> None:
    with cluster.start(brokers=1, root=tmp_path / "data", namespace="renamed"):
        pass
    layout = tmp_path / "data" / "raymq-cluster.json"
    layout.write_text(layout.read_text().replace("broker_", "broker_formerly-"))
    with cluster.start(brokers=1, root=tmp_path / "data", namespace="renamed") as mq:
        assert [broker.state for broker in Admin(mq).cluster_info().brokers] == ["running"]


@pytest.mark.long
def test_start_fails_if_name_server_rejects_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use mutually untrusted certificates: the start succeeded, and every call failed."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    own, _ = certificates(tmp_path / "ours")
    other, _ = certificates(tmp_path / "theirs")
    config = {"tls_ca_file": other.ca_file, "tls_cert_file": own.cert_file, "tls_key_file": own.key_file}
    monkeypatch.setattr(cluster_launch, "REGISTER_SECONDS", 2.0)
    with pytest.raises(BrokerUnavailable, match=r"not in the routes.*certificate"):
        cluster.start(brokers=1, root=tmp_path / "data", namespace="untrusted", config=config)
    poll_until(lambda: cluster_launch.names("untrusted") == [], 10)
