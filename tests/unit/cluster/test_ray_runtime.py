"""What an embedded Ray is started with."""

from __future__ import annotations

import os

import pytest

from raymq.actors.spare_process import SPARE_PROCESS
from raymq.cluster import ray_runtime

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
