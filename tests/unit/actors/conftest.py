"""Run coroutine tests on an event loop of their own, and provide the shared fixtures."""

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
from tests.validation import check_invariants


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end; leave any other test to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that moves only when the test advances it."""
    return FakeClock()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Yield a broker core with the topic "t" of two queues."""
    made = Bench(tmp_path / "broker-a")
    made.core.topics.create("t", 2)
    yield made
    check_invariants(made.core.locks)
    made.store.close()


@pytest.fixture
def no_waiting_for_the_disk() -> Iterator[None]:
    """Skip fsync, because the test simulates no power loss."""
    with replaced(UnsyncedCalls()):
        yield
