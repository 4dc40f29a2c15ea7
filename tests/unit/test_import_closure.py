"""What a program loads that imports the client: nothing of brokers and name servers, no Ray, and only what it uses."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import raymq.client

#: Of ours, with the packages: what a program may load that uses one kind of client.
MAX_MODULES = 127
FORBIDDEN = tuple(
    f"raymq.{name}"
    for name in (
        *("actors.broker", "actors.names", "storage.log", "storage.files", "storage.tables", "storage.timers"),
        "storage.store",
    )
)


def loaded_by(program: str) -> set[str]:
    """The modules of a fresh process that has run `program`."""
    report = f"{program}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=90, check=True)
    return set(json.loads(ended.stdout))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name == "raymq" or name.startswith("raymq.")}


def forbidden(modules: set[str]) -> set[str]:
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
def test_a_program_loads_what_it_uses_and_nothing_of_the_servers(program: str) -> None:
    modules = loaded_by(program)
    assert "raymq.client" in modules
    assert forbidden(modules) == set()
    assert len(ours(modules)) <= MAX_MODULES, sorted(ours(modules))


def test_all_clients_together_load_nothing_of_the_servers() -> None:
    modules = loaded_by("from raymq.client import *")
    assert {"raymq.client.push.push_consumer", "raymq.client.admin.admin"} <= modules
    assert forbidden(modules) == set()


def test_who_connects_to_a_cluster_reads_the_file_that_says_where_it_is_and_loads_nothing_else_of_servers() -> None:
    modules = loaded_by("from raymq.cluster import connect")
    assert {name.rpartition(".")[0] for name in forbidden(modules)} <= {"raymq.storage", "raymq.storage.files"}


def test_every_public_name_is_the_one_of_its_module() -> None:
    assert sorted(raymq.client.__all__) == sorted(raymq.client._HOMES)
    assert set(raymq.client.__all__) <= set(dir(raymq.client))
    for name, module in raymq.client._HOMES.items():
        assert getattr(raymq.client, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'Nobody'"):
        raymq.client.Nobody  # noqa: B018
