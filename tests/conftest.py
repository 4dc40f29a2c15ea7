"""What all tests share. Fixtures of one folder belong into its own conftest.py."""

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

# Two busy cores make single examples slow: that is no failure.
settings.register_profile("raymq", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("raymq")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before each test: also a run that fills the disk by itself stops there."""
    folder = temporary_files.folder(item.config.getoption("basetemp"))
    told = temporary_files.reason_to_stop(folder, DiskUsage.of(folder))
    if told is not None:
        pytest.exit(told, returncode=pytest.ExitCode.INTERNAL_ERROR)


#: An object's address in a test's name: the processes of pytest-xdist would not collect the same tests.
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a shell's background does to Ctrl-C, which some tests send to themselves; keep no spare processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("RAYMQ_SPARE_PROCESS", "0")  # each costs the start of a process
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist has no terminal, and its folder is chosen
        temporary_files.choose_root()
        config.pluginmanager.register(running_tests.RunningTests(), running_tests.NAME)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(sweep_sampling.OPTION, action="store_true", help="every case of the sweeps, not some of each")
    parser.addoption(sweep_sampling.NUMPY, action="store_true", help="only what is done for batches, in NumPy")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a fresh clone each process of pytest-xdist would compile all test files: 20 s of processor each."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    from tests.xdist_scheduler import run_first_alone

    with run_first_alone(session.config.rootpath / "build" / "collection.lock"):
        return (yield)


@pytest.hookimpl(trylast=True)  # behind -k and -m: of what is asked for by name some are always run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The processes of pytest-xdist have to collect the same tests, in the same order."""
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
    """Called where tests run in several processes."""
    from tests.xdist_scheduler import RayAwareScheduling

    return RayAwareScheduling(config, log)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def batch_code(request: pytest.FixtureRequest) -> Iterator[str]:
    """What is done for batches is done in NumPy, and by compiled code; `make test` runs one of them [sweeps.py]."""
    before = native_kernels.kernels
    native_kernels.use(None if request.param == "numpy" else pytest.importorskip("raymq_native"))
    try:
        yield request.param
    finally:
        native_kernels.use(before)


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    """An event loop on a thread of its own, for what a broker or a name server runs on."""
    made = EventLoopThread("test")
    yield made
    made.stop()
