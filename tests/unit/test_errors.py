"""Test that errors survive pickle with all fields, and that the public hierarchy is as documented."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.errors import Attempt
from raymq.actors.protocol import MessageQueue
from raymq.storage.errors import InvalidInput, RayMQError

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ["storage", "actors", "client", "spark_bridge", "cluster", "demo"]

#: Sample arguments for error constructors, by annotation; all others are text.
SAMPLES: dict[str, Any] = {
    "int": 7,
    "int | None": 7,
    "float": 1.5,
    "Mapping[str, str]": {"broker-a": "a chunk is damaged"},
    "Sequence[Attempt]": [
        Attempt("broker-a", MessageQueue("t", "broker-a", 3), "SYSTEM_BUSY", "busy", 0.25),
        Attempt(None, None, None, "lost", 1.0),
    ],
}


#: Modules that derive from classes of Spark 4.2; with another Spark `spark_bridge.register_source` raises an error.
OF_SPARK_4 = {f"raymq.spark_bridge.spark4_source.{name}" for name in ("data_source", "source_reader", "source_writer")}


def all_modules() -> list[str]:
    paths = [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths]
    return ["raymq." + name.removesuffix(".__init__") for name in names]


def all_errors() -> list[type[RayMQError]]:
    """Return RayMQError and every subclass in every module."""
    for module in all_modules():
        with contextlib.suppress(ImportError):  # which test_every_module_imports reports
            importlib.import_module(module)
    found: dict[type[RayMQError], None] = {}
    queue: list[type[RayMQError]] = [RayMQError]
    for each in queue:
        if each not in found and each.__module__.startswith("raymq."):
            found[each] = None
            queue += each.__subclasses__()
    return list(found)


def example_error(error: type[RayMQError]) -> RayMQError:
    """Return an instance with every argument given."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(error).parameters.values():
        value = SAMPLES.get(str(parameter.annotation), f"a {parameter.name}")
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.kind is not parameter.VAR_KEYWORD:
            positional.append(value)
    return error(*positional, **named)


def all_fields(error: BaseException) -> dict[str, Any]:
    return {
        "type": type(error),
        "text": str(error),
        "args": error.args,
        "fields": dict(vars(error)),
        **{name: getattr(error, name) for name in ("code", "retriable", "remedy")},
    }


@pytest.mark.parametrize("module", all_modules())
def test_every_module_imports(module: str) -> None:
    if module in OF_SPARK_4 and find_spec("pyspark.sql.streaming.datasource") is None:
        with pytest.raises(ModuleNotFoundError, match=r"pyspark\.sql"):
            importlib.import_module(module)
    else:
        importlib.import_module(module)


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: f"{error.__module__}.{error.__qualname__}")
def test_error_survives_pickle_with_all_fields(error: type[RayMQError]) -> None:
    made = example_error(error)
    made.add_note("seen by broker-a")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert all_fields(pickle.loads(pickle.dumps(made, protocol))) == all_fields(made)
    assert all_fields(copy.copy(made)) == all_fields(made)


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__qualname__)
def test_error_has_code_docstring_and_text(error: type[RayMQError]) -> None:
    assert isinstance(error.retriable, bool)
    assert error.code is None
    assert error.__doc__
    assert str(example_error(error))


def test_error_with_other_arguments_fails_to_unpickle() -> None:
    class Forgetful(Exception):
        def __init__(self, broker: str, queue: int) -> None:
            super().__init__(f"{broker} {queue}")

    globals()["Forgetful"] = Forgetful
    Forgetful.__qualname__ = "Forgetful"
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(Forgetful("broker-a", 1)))


def test_public_errors_have_the_documented_base_classes() -> None:
    from raymq.client import errors

    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.OutcomeUnknown, TimeoutError)
    assert not issubclass(errors.NotStored, TimeoutError)
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, BaseException):
            assert issubclass(error, RayMQError), name
    assert errors.RayMQError is RayMQError
    assert errors.InvalidInput is InvalidInput


def test_public_errors_have_the_documented_fields() -> None:
    from raymq.client import errors

    invalid = errors.InvalidInput("topic", "at most 127 characters", "x" * 300)
    assert (invalid.field, invalid.limit, invalid.actual) == ("topic", "at most 127 characters", "x" * 300)
    assert "topic" in str(invalid)
    assert "at most 127 characters" in str(invalid)
    attempts = SAMPLES["Sequence[Attempt]"]
    for error in (errors.NotStored, errors.OutcomeUnknown):
        made = error("no luck", attempts)
        assert made.attempts == attempts
        assert made.code == "SYSTEM_BUSY"
        first = made.attempts[0]
        assert (first.broker, first.queue, first.code, first.error, first.elapsed) == (
            "broker-a", MessageQueue("t", "broker-a", 3), "SYSTEM_BUSY", "busy", 0.25,
        )  # fmt: skip
    outside = errors.OffsetOutOfRange(1, 5, 9)
    assert (outside.offset, outside.min_offset, outside.max_offset) == (1, 5, 9)
    assert errors.BrokerUnavailable("broker-a").broker == "broker-a"
    assert errors.StoreLocked("/data", 42).pid == 42
    corrupt = errors.StoreCorrupt("commitlog/00000000000000000000", 91, "CRC")
    assert (corrupt.file, corrupt.offset) == ("commitlog/00000000000000000000", 91)
