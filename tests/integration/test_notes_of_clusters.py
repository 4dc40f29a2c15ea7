"""The command line goes where this user's cluster was noted only if it is that cluster which is there."""

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
def _this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who has no Ray, and a folder of notes."""

    def without_ray(namespace: str = "", address: str = "auto", *, name_servers: Any = None, tls: Any = None) -> Any:
        if name_servers is None:
            raise BrokerUnavailable("cluster", f"no cluster runs in namespace {namespace}")
        return connect(name_servers=name_servers, tls=tls)

    monkeypatch.setattr(cli, "connect", without_ray)
    for name in ("RAY_ADDRESS", "RAYMQ_NAME_SERVERS", "RAYMQ_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))


def said_in(namespace: str, *command: str) -> Result:
    return CliRunner().invoke(cli.main_group, ["--namespace", namespace, *command])


def test_a_note_of_a_cluster_that_is_gone_does_not_lead_to_the_one_that_has_its_port(
    services: Services, admin: Admin
) -> None:
    """The services' cluster is "test"; "other" was killed, and had a name server where that one has it now."""
    cluster_file.save("other", [services.name_server.address], None, None)
    for command in (["topic", "list"], ["topic", "delete", "t", "--yes"]):
        done = said_in("other", *command)
        assert done.exit_code == 1
        assert "no cluster runs in namespace other" in str(done.exception)
    assert admin.topics() == ["t"]


def test_of_several_name_servers_those_of_the_cluster_are_asked(services: Services, admin: Admin) -> None:
    cluster_file.save("test", ["127.0.0.1:9", services.name_server.address], None, None)
    done = said_in("test", "topic", "list")
    assert done.exit_code == 0, done.output
    assert "t" in done.output


def test_a_name_server_that_knows_no_broker_may_be_anybodys(services: Services) -> None:
    cluster_file.save("test", [services.name_server.address], None, None)
    assert said_in("test", "topic", "list").exit_code == 0
    for name in ("broker-a", "broker-b"):
        services.stop_broker(name)
    assert "no cluster runs" in str(said_in("test", "topic", "list").exception)


def test_what_is_no_address_leads_nowhere() -> None:
    cluster_file.save("test", ["nowhere"], None, None)
    assert "no cluster runs" in str(said_in("test", "topic", "list").exception)
