"""Hooks and fixtures of all tests. Fixtures of one folder belong in the conftest.py of that folder."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from raymq.actors.event_loop import EventLoopThread
from raymq.storage.log.retention import DiskUsage
from raymq.storage.records import native_kernels
from tests import running_tests, sweep_sampling, temporary_files

# Single examples may be slow on two busy cores; this is not a failure.
settings.register_profile("raymq", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("raymq")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the disk before each test, so that a run that fills the disk stops."""
    folder = temporary_files.folder(item.config.getoption("basetemp"))
    reason = temporary_files.reason_to_stop(folder, DiskUsage.of(folder))
    if reason is not None:
        pytest.exit(reason, returncode=pytest.ExitCode.INTERNAL_ERROR)


#: An object's address in a test's name, with which processes of pytest-xdist would collect different tests.
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def pytest_configure(config: pytest.Config) -> None:
    """Restore the handling of Ctrl-C that a background shell disables, and keep no spare processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("RAYMQ_SPARE_PROCESS", "0")  # each spare costs the start of a process
    if not hasattr(config, "workerinput"):  # xdist workers have no terminal, and get their folder
        temporary_files.choose_root()
        config.pluginmanager.register(running_tests.RunningTests(), running_tests.NAME)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(sweep_sampling.OPTION, action="store_true", help="every case of the sweeps, not some of each")
    parser.addoption(sweep_sampling.NUMPY, action="store_true", help="only what is done for batches, in NumPy")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let one xdist process collect and compile first; in a fresh clone this takes 20 s of CPU time."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    from tests.xdist_scheduler import run_first_alone

    with run_first_alone(session.config.rootpath / "build" / "collection.lock"):
        return (yield)


@pytest.hookimpl(trylast=True)  # after -k and -m, so that some of the selected cases always run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select and sort the tests; all xdist processes must collect the same list."""
    if unsteady := [item.nodeid for item in items if _ADDRESS.search(item.nodeid)]:
        raise pytest.UsageError(f"tests whose names differ from process to process; give ids: {unsteady}")
    is_whole = config.getoption(sweep_sampling.OPTION)
    if config.getoption(sweep_sampling.NUMPY) or not is_whole:
        kept, left = sweep_sampling.filter_batch_code(items, numpy=config.getoption(sweep_sampling.NUMPY))
        if not is_whole:
            kept, sample_cases = sweep_sampling.sample_cases(kept)
            left += sample_cases
        items[:] = kept
        if left:
            config.hook.pytest_deselected(items=left)
    if hasattr(config, "workerinput"):
        from tests.xdist_scheduler import unit_order

        items.sort(key=lambda item: unit_order(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler for runs with several processes."""
    from tests.xdist_scheduler import RayAwareScheduling

    return RayAwareScheduling(config, log)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the repository's root."""
    return REPOSITORY


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def batch_code(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run batch code in NumPy and compiled; `make test` runs one, see sweep_sampling.py."""
    before = native_kernels.kernels
    native_kernels.use(None if request.param == "numpy" else pytest.importorskip("raymq_native"))
    try:
        yield request.param
    finally:
        native_kernels.use(before)


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    """Yield an event loop on its own thread, for a broker or a name server."""
    thread = EventLoopThread("test")
    yield thread
    thread.stop()
