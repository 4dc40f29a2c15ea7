"""Test the settings of an embedded Ray, and that joining a Ray keeps signal handlers."""

from __future__ import annotations

import dataclasses
import json
import logging
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
def test_embedded_ray_preloads_broker_modules(
    monkeypatch: pytest.MonkeyPatch, spare: str, given: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {SPARE_PROCESS: spare} | ({} if given is None else {PRELOAD: given}))
    monkeypatch.setattr(ray_runtime, "java_environment", dict)
    monkeypatch.setattr(ray_runtime, "_run_on_lasting_thread", lambda start: None)
    ray_runtime.start_embedded(2)
    assert os.environ.get(PRELOAD) == expected


def test_join_keeps_the_sigterm_handler_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets its own handler, and replaces also one that asyncio has set."""

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)

    class Handler:
        __hash__ = None  # type: ignore[assignment]  # unhashable, as a dataclass is

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


def test_log_format_of_the_actors_is_set_for_the_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_runtime._job_options("ray://h:1") == ray_runtime._job_options() == {}
    monkeypatch.setenv("RAYMQ_LOG_FORMAT", "json")
    handlers = list(logging.getLogger().handlers)
    through_client = ray_runtime._job_options("ray://h:1")["logging_config"]
    through_client._apply()  # ray.init calls it
    assert logging.getLogger().handlers == handlers
    assert json.loads(json.dumps(dataclasses.asdict(through_client)))["encoding"] == "JSON"
    assert ray_runtime._job_options("127.0.0.1:6379")["job_config"].py_logging_config.encoding == "JSON"


def test_failed_join_keeps_the_sigterm_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets its own handler and then raises; the program's handler is restored."""

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


def test_cluster_of_another_process_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cluster_file.ClusterEndpoint(("127.0.0.1:1",), pid=os.getppid())
    monkeypatch.setattr(cluster_file, "load", lambda _: known)
    monkeypatch.setattr(cluster_file_check, "verified_name_servers", lambda *_: known.name_servers)
    with pytest.raises(BrokerUnavailable, match=f"namespace shop already, in process {os.getppid()}"):
        bootstrap._check_not_running("shop")
    monkeypatch.setattr(cluster_file_check, "verified_name_servers", lambda *_: [])
    bootstrap._check_not_running("shop")
