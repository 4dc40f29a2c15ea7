"""Test that the cluster file is read only if no other setting leads to a Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import BrokerUnavailable, InvalidInput
from raymq.cluster import bootstrap, cluster_file, cluster_launch, ray_runtime

NAMESPACE = "raymq"


@pytest.fixture(autouse=True)
def writable_cluster_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the cluster folder writable for others, so that reading it is refused."""
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(folder))
    with pytest.raises(InvalidInput):
        cluster_file.load(NAMESPACE)


@pytest.fixture(autouse=True)
def joined_addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the joined Ray addresses; no Ray was started here or joined before."""
    joined_addresses: list[str] = []
    monkeypatch.delenv(ray_runtime.ADDRESS, raising=False)
    monkeypatch.setattr(ray_runtime.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_runtime.ray_utils, "read_ray_address", lambda: None)
    monkeypatch.setattr(ray_runtime, "_join", joined_addresses.append)
    monkeypatch.setattr(ray_runtime, "address", lambda: None)
    monkeypatch.setattr(cluster_launch, "addresses", lambda _: ["127.0.0.1:9"])
    monkeypatch.setattr(cluster_launch, "start_arguments", lambda _: {"config": {"tls": None}})
    monkeypatch.setattr(cluster_launch, "names", lambda _: ["broker-a"])
    monkeypatch.setattr("raymq.cluster.cluster_stop.stop_actors", lambda *_: None)
    return joined_addresses


CALLS: list[Callable[[], object]] = [
    lambda: cluster.connect(NAMESPACE).close(),
    lambda: bootstrap.stop(NAMESPACE),
    lambda: bootstrap.running_brokers(NAMESPACE),
]


@pytest.mark.parametrize("call", CALLS, ids=["connect", "stop", "running"])
@pytest.mark.parametrize("way", ["joined already", "named", "started here"])
def test_cluster_file_is_not_read_if_a_ray_is_known(
    call: Callable[[], object], way: str, joined_addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "joined already":
        monkeypatch.setattr(ray_runtime.ray, "is_initialized", lambda: True)
    elif way == "named":
        monkeypatch.setenv(ray_runtime.ADDRESS, "127.0.0.1:6379")
    else:
        monkeypatch.setattr(ray_runtime.ray_utils, "read_ray_address", lambda: "127.0.0.1:6379")
    call()
    assert joined_addresses == ([] if way == "joined already" else ["127.0.0.1:6379"])


@pytest.mark.parametrize("call", CALLS, ids=["connect", "stop", "running"])
def test_cluster_file_that_others_may_write_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=cluster_file.HOME_VARIABLE):
        call()


def test_cluster_file_is_the_fallback_only_of_auto(joined_addresses: list[str]) -> None:
    ray_runtime.join_address("auto", lambda: "127.0.0.1:6380")
    assert joined_addresses == ["127.0.0.1:6380"]
    with pytest.raises(BrokerUnavailable, match="connected to no Ray"):
        ray_runtime.join_address("auto", lambda: None)
    with pytest.raises(BrokerUnavailable, match="connected to no Ray"):
        ray_runtime.join_address("local", lambda: "127.0.0.1:6380")
