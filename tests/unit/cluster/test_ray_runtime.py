"""What an embedded Ray is started with, and what joining one leaves as it is."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.spare_process import SPARE_PROCESS
from raymq.cluster import bootstrap, cluster_file, cluster_file_check, ray_runtime

PRELOAD = "RAY_preload_python_modules"


@pytest.mark.parametrize(
    ("spare", "given", "expected"),
    [("1", None, "raymq.actors.broker_actor"), ("0", None, None), ("1", "mine", "mine"), ("1", "", "")],
)
def test_an_embedded_ray_imports_a_brokers_modules_ahead(
    monkeypatch: pytest.MonkeyPatch, spare: str, given: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {SPARE_PROCESS: spare} | ({} if given is None else {PRELOAD: given}))
    monkeypatch.setattr(ray_runtime, "java_environment", dict)
    monkeypatch.setattr(ray_runtime, "_run_on_lasting_thread", lambda start: None)
    ray_runtime.start_embedded(2)
    assert os.environ.get(PRELOAD) == expected


def test_a_programs_sigterm_handler_outlives_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets one of its own, also in the place of what asyncio has set."""

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)

    class Handler:
        __hash__ = None  # type: ignore[assignment]  # as a dataclass has none

        def __call__(self, *_: object) -> None:
            pass

    mine = Handler()
    monkeypatch.setattr(ray_runtime.ray, "init", init)
    before = signal.signal(signal.SIGTERM, mine)
    try:
        ray_runtime._join("ray://127.0.0.1:1")
        assert signal.getsignal(signal.SIGTERM) is mine
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ray_runtime._join("ray://127.0.0.1:1")
        assert callable(signal.getsignal(signal.SIGTERM)), "Ray's ends the program cleanly"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_programs_sigterm_handler_outlives_a_join_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the program's handler where Ray has set its own and then raised."""

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        raise ConnectionError("nobody answers")

    def mine(*_: object) -> None:
        pass

    monkeypatch.setattr(ray_runtime.ray, "init", init)
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(BrokerUnavailable, match="nobody answers"):
            ray_runtime._join("ray://127.0.0.1:1")
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cluster_that_another_process_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cluster_file.ClusterEndpoint(("127.0.0.1:1",), pid=os.getppid())
    monkeypatch.setattr(cluster_file, "load", lambda _: known)
    monkeypatch.setattr(cluster_file_check, "verified_name_servers", lambda *_: known.name_servers)
    with pytest.raises(BrokerUnavailable, match=f"namespace shop already, in process {os.getppid()}"):
        bootstrap._check_not_running("shop")
    monkeypatch.setattr(cluster_file_check, "verified_name_servers", lambda *_: [])
    bootstrap._check_not_running("shop")
