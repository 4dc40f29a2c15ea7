"""Tests that are coroutine functions run on an event loop of their own; the broker's core that many tests use."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import UnsyncedCalls
from tests.unit.actors.bench import Bench
from tests.unit.actors.clock import FakeClock


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function to its end; anything else is pytest's."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def clock() -> FakeClock:
    """The clock of what is tested, which only the test moves on."""
    return FakeClock()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A core with the topic "t" of two queues."""
    made = Bench(tmp_path / "broker-a")
    made.core.topics.create("t", 2)
    yield made
    made.core.locks.validate()
    made.store.close()


@pytest.fixture
def no_waiting_for_the_disk() -> Iterator[None]:
    """What is to be on disk is not waited for: no power is lost."""
    with replaced(UnsyncedCalls()):
        yield
