"""Where this user noted its clusters is asked for when nothing else leads to a Ray, and not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import BrokerUnavailable, InvalidInput
from raymq.cluster import bootstrap, cluster_file, cluster_launch, ray_runtime

NAMESPACE = "raymq"


@pytest.fixture(autouse=True)
def notes_of_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that others may write: whoever asks it is refused."""
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(folder))
    with pytest.raises(InvalidInput):
        cluster_file.load(NAMESPACE)


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which Ray was joined. There is none that was started here, nor one that is joined already."""
    joined: list[str] = []
    monkeypatch.delenv(ray_runtime.ADDRESS, raising=False)
    monkeypatch.setattr(ray_runtime.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_runtime.ray_utils, "read_ray_address", lambda: None)
    monkeypatch.setattr(ray_runtime, "_join", joined.append)
    monkeypatch.setattr(ray_runtime, "address", lambda: None)
    monkeypatch.setattr(cluster_launch, "addresses", lambda _: ["127.0.0.1:9"])
    monkeypatch.setattr(cluster_launch, "start_arguments", lambda _: {"config": {"tls": None}})
    monkeypatch.setattr(cluster_launch, "names", lambda _: ["broker-a"])
    monkeypatch.setattr("raymq.cluster.cluster_stop.stop_actors", lambda *_: None)
    return joined


CALLS: list[Callable[[], object]] = [
    lambda: cluster.connect(NAMESPACE).close(),
    lambda: bootstrap.stop(NAMESPACE),
    lambda: bootstrap.running_brokers(NAMESPACE),
]


@pytest.mark.parametrize("call", CALLS, ids=["connect", "stop", "running"])
@pytest.mark.parametrize("way", ["joined already", "named", "started here"])
def test_where_something_else_leads_to_a_ray_the_notes_are_not_asked(
    call: Callable[[], object], way: str, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "joined already":
        monkeypatch.setattr(ray_runtime.ray, "is_initialized", lambda: True)
    elif way == "named":
        monkeypatch.setenv(ray_runtime.ADDRESS, "127.0.0.1:6379")
    else:
        monkeypatch.setattr(ray_runtime.ray_utils, "read_ray_address", lambda: "127.0.0.1:6379")
    call()
    assert joined == ([] if way == "joined already" else ["127.0.0.1:6379"])


@pytest.mark.parametrize("call", CALLS, ids=["connect", "stop", "running"])
def test_where_nothing_else_does_notes_that_anybody_may_write_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=cluster_file.HOME_VARIABLE):
        call()


def test_the_notes_are_the_last_resort_of_auto_alone(joined: list[str]) -> None:
    ray_runtime.join_address("auto", lambda: "127.0.0.1:6380")
    assert joined == ["127.0.0.1:6380"]
    with pytest.raises(BrokerUnavailable, match="connected to no Ray"):
        ray_runtime.join_address("auto", lambda: None)
    with pytest.raises(BrokerUnavailable, match="connected to no Ray"):
        ray_runtime.join_address("local", lambda: "127.0.0.1:6380")
