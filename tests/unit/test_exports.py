"""Test that `__all__` of each package lists its exports, and that the public names exist."""

from __future__ import annotations

import importlib
import types
import typing
from pathlib import Path

import pytest

PACKAGES = [
    "actors",
    "actors.broker",
    "actors.broker.core",
    "actors.broker.core.appending",
    "actors.broker.core.copies",
    "actors.broker.core.delay",
    "actors.broker.core.groups",
    "actors.broker.core.pop",
    "actors.broker.core.reading",
    "actors.broker.core.redelivery",
    "actors.broker.core.transactions",
    "actors.broker.core.writes",
    "actors.broker.handlers",
    "actors.broker.replica",
    "actors.broker.replication",
    "actors.filter",
    "actors.coordinator",
    "actors.keeper",
    "actors.keeper.etcd",
    "actors.keeper.serving",
    "actors.metrics",
    "actors.names",
    "actors.sending",
    "actors.wire",
    "actors.wire.commands",
    "actors.wire.headers",
    "client",
    "client.admin",
    "client.bulk",
    "client.members",
    "client.pop",
    "client.produce",
    "client.pull",
    "client.push",
    "client.requests",
    "client.tracing",
    "cluster",
    "cluster.bench",
    "cluster.doctor",
    "cluster.elastic",
    "configs",
    "console",
    "datasets",
    "demo",
    "spark_bridge",
    "spark_bridge.spark4_source",
    "storage",
    "storage.backup",
    "storage.files",
    "storage.journal",
    "storage.log",
    "storage.records",
    "storage.tables",
    "storage.timers",
]  # fmt: skip

ERRORS = {
    "RayMQError", "InvalidInput", "NotStored", "OutcomeUnknown", "Attempt",
    "TopicNotFound", "TopicExists", "QueueNotFound", "GroupNotFound", "MessageNotFound", "MessageExpired",
    "BrokerUnavailable", "OffsetOutOfRange", "SubscriptionMismatch", "NotRecallable", "ClientClosed",
    "PermissionDenied", "StoreLocked", "StoreCorrupt",
}  # fmt: skip

#: The public API that programs outside this repository are written against. Names may be added here, but never removed.
PUBLIC = {
    "client": ERRORS | {
        "Message", "Producer", "SendStatus", "SendResult", "PushConsumer", "PullConsumer", "ConsumeResult", "Retry",
        "ConsumeFrom", "MessageModel", "MessageQueue", "Admin",
        "Sql", "RecallStatus", "DeadMessage", "RedriveResult", "Operation", "Election", "ElectionFailed",
        "BrokerChange",
    },
    "client.errors": ERRORS,
    "cluster": {"start", "connect", "stop", "Tls"},
    "spark_bridge": {"SparkBridge", "register_source"},
}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_the_exported_names(package: str) -> None:
    module = importlib.import_module(f"raymq.{package}")
    declared = getattr(module, "__all__", [])
    assert len(set(declared)) == len(declared)
    for name in declared:
        assert getattr(module, name) is not None
    bound = {
        name
        for name, value in vars(module).items()
        if not (name.startswith("_") or name == "annotations" or isinstance(value, types.ModuleType))
        and getattr(typing, name, None) is not value
    }
    assert bound <= set(declared), f"exported without being in __all__: {sorted(bound - set(declared))}"


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_exported(module: str) -> None:
    found = importlib.import_module(f"raymq.{module}")
    missing = {name for name in PUBLIC[module] if not hasattr(found, name)}
    assert not missing
    assert set(found.__all__) >= PUBLIC[module]


def test_every_package_is_in_the_list(repository: Path) -> None:
    folders = {
        str(path.parent.relative_to(repository)).replace("/", ".")
        for folder in repository.iterdir()
        if folder.is_dir()
        and not folder.name.startswith(".")
        and folder.name not in {"tests", "build", "dist", "native"}
        for path in folder.rglob("__init__.py")
    }
    assert folders == set(PACKAGES)
