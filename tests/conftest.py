"""What all tests share. Fixtures of one folder belong into its own conftest.py."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from raymq.actors.event_loop import EventLoopThread
from raymq.storage.log.retention import Disk
from raymq.storage.records import compiled
from tests.full_disk_stop import reason_to_stop

# Two busy cores make single examples slow: that is no failure.
settings.register_profile("raymq", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("raymq")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before each test: also a run that fills the disk by itself stops there."""
    folder = Path(item.config.getoption("basetemp") or tempfile.gettempdir())
    told = reason_to_stop(folder, Disk.of(folder if folder.exists() else folder.parent))
    if told is not None:
        pytest.exit(told, returncode=pytest.ExitCode.INTERNAL_ERROR)


#: Folders whose tests start Ray, Spark, or servers for everybody: one at a time on a machine.
CLUSTERS = ("chaos", "integration", "interop")


def pytest_configure() -> None:
    """What is started in the background of a shell ignores Ctrl-C, which some tests send to themselves."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under pytest-xdist one process takes all that starts clusters, in one go; the others take the rest by files.

    Whoever starts a cluster mostly waits, for processes and for sockets; the rest computes.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        within = item.path.relative_to(REPOSITORY / "tests")
        group = "clusters" if within.parts[0] in CLUSTERS else str(within)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def batch_code(request: pytest.FixtureRequest) -> Iterator[str]:
    """A module that asks for it is run twice: what is done for batches is done in NumPy, and by compiled code."""
    before = compiled.kernels
    compiled.use(None if request.param == "numpy" else pytest.importorskip("raymq_native"))
    try:
        yield request.param
    finally:
        compiled.use(before)


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    """An event loop on a thread of its own, for what a broker or a name server runs on."""
    made = EventLoopThread("test")
    yield made
    made.stop()
