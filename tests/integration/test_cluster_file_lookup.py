"""Test that the command line uses a saved cluster file only for the cluster that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raymq.actors.errors import BrokerUnavailable
from raymq.client import Admin
from raymq.cluster import cli, cluster_file
from raymq.cluster.bootstrap import connect
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _user_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the user no Ray and an empty folder of cluster files."""

    def without_ray(
        namespace: str = "", address: str = "auto", *, name_servers: Any = None, tls: Any = None, tracing: bool = False
    ) -> Any:
        if name_servers is None:
            raise BrokerUnavailable("cluster", f"no cluster runs in namespace {namespace}")
        return connect(name_servers=name_servers, tls=tls, tracing=tracing)

    monkeypatch.setattr(cli, "connect", without_ray)
    for name in ("RAY_ADDRESS", "RAYMQ_NAME_SERVERS", "RAYMQ_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))


def run_command(namespace: str, *command: str) -> Result:
    return CliRunner().invoke(cli.main_group, ["--namespace", namespace, *command])


def test_stale_cluster_file_does_not_reach_other_cluster(services: Services, admin: Admin) -> None:
    """Save "other" with the address that the running cluster "test" now has."""
    cluster_file.save("other", [services.name_server.address], None, None)
    for command in (["topic", "list"], ["topic", "delete", "t", "--yes"]):
        done = run_command("other", *command)
        assert done.exit_code == 1
        assert "no cluster runs in namespace other" in str(done.exception)
    assert admin.topics() == ["t"]


def test_unreachable_name_server_in_file_is_skipped(services: Services, admin: Admin) -> None:
    cluster_file.save("test", ["127.0.0.1:9", services.name_server.address], None, None)
    done = run_command("test", "topic", "list")
    assert done.exit_code == 0, done.output
    assert "t" in done.output


def test_name_server_without_brokers_is_not_trusted(services: Services) -> None:
    cluster_file.save("test", [services.name_server.address], None, None)
    assert run_command("test", "topic", "list").exit_code == 0
    for name in ("broker-a", "broker-b"):
        services.stop_broker(name)
    assert "no cluster runs" in str(run_command("test", "topic", "list").exception)


def test_invalid_address_in_cluster_file_is_ignored() -> None:
    cluster_file.save("test", ["nowhere"], None, None)
    assert "no cluster runs" in str(run_command("test", "topic", "list").exception)
