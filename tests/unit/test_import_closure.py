"""Test that an import of the client loads no Ray and no server modules."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import raymq.client

#: The most modules and packages of RayMQ that a program with one kind of client may load.
MAX_MODULES = 145
FORBIDDEN = tuple(
    f"raymq.{name}"
    for name in (
        *("actors.broker", "actors.names", "storage.log", "storage.files", "storage.tables", "storage.timers"),
        "storage.store",
    )
)


def loaded_by(program: str) -> set[str]:
    """Return the modules of a new process that has run `program`."""
    report = f"{program}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=90, check=True)
    return set(json.loads(ended.stdout))


def raymq_modules(modules: set[str]) -> set[str]:
    return {name for name in modules if name == "raymq" or name.startswith("raymq.")}


def forbidden_modules(modules: set[str]) -> set[str]:
    return {
        name
        for name in modules
        if name == "ray" or any(name == each or name.startswith(each + ".") for each in FORBIDDEN)
    }


@pytest.mark.parametrize(
    "program",
    [
        "import raymq.client",
        *(f"from raymq.client import {name}" for name in ("Connection", "Message", "Producer", "PushConsumer")),
        *(f"from raymq.client import {name}" for name in ("PullConsumer", "SimpleConsumer", "Admin")),
    ],
)
def test_client_import_loads_no_server_modules(program: str) -> None:
    modules = loaded_by(program)
    assert "raymq.client" in modules
    assert forbidden_modules(modules) == set()
    assert len(raymq_modules(modules)) <= MAX_MODULES, sorted(raymq_modules(modules))


def test_import_of_all_clients_loads_no_server_modules() -> None:
    modules = loaded_by("from raymq.client import *")
    assert {"raymq.client.push.push_consumer", "raymq.client.admin.admin"} <= modules
    assert forbidden_modules(modules) == set()


def test_connect_loads_only_storage_file_modules_of_servers() -> None:
    modules = loaded_by("from raymq.cluster import connect")
    assert {name.rpartition(".")[0] for name in forbidden_modules(modules)} <= {"raymq.storage", "raymq.storage.files"}


def test_public_names_come_from_their_modules() -> None:
    assert sorted(raymq.client.__all__) == sorted(raymq.client._HOMES)
    assert set(raymq.client.__all__) <= set(dir(raymq.client))
    for name, module in raymq.client._HOMES.items():
        assert getattr(raymq.client, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'Nobody'"):
        raymq.client.Nobody  # noqa: B018
