"""Test how a process that hosts a service starts, retries and stops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.broker.service import BrokerService
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import HostedService
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec
from raymq.storage.errors import StoreFailed
from raymq.storage.files import json_file
from tests.polling import poll_until

PROGRAM = """
import sys
from raymq.actors.hosted_service import block_pandas_import
block_pandas_import()
import pyarrow as pa
print(pa.array([1, 2]).to_pylist(), "pandas" in sys.modules)
"""


def test_pyarrow_arrays_work_without_pandas() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[1, 2] False\n"


def test_name_server_restarts_on_its_address_after_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a failed start whose listening socket blocks all later starts."""
    spec = NameServerSpec(0, str(tmp_path), "127.0.0.1", 0)
    first = HostedService("name-server", EventLoopThread("name-server"), lambda: NameServerService.start(spec))
    address = first.wait(20.0, 5.0).address
    first.stop()
    save, failures = json_file.save, [StoreFailed("an error of the disk"), StoreFailed("another one")]

    def saving(path: Path, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        save(path, *arguments)

    monkeypatch.setattr(json_file, "save", saving)
    again = HostedService("name-server", EventLoopThread("name-server"), lambda: NameServerService.start(spec))
    assert again.wait(20.0, 10.0).address == address
    assert not failures
    again.stop()


def test_wait_on_stopped_service_fails_at_once(tmp_path: Path) -> None:
    """Guard against waiting two minutes for the stopped broker of a machine that left."""
    spec = NameServerSpec(0, str(tmp_path), "127.0.0.1", 0)
    hosted = HostedService("name-server", EventLoopThread("name-server"), lambda: NameServerService.start(spec))
    hosted.wait(20.0, 5.0)
    assert not hosted.is_stopped
    hosted.stop()
    assert hosted.is_stopped
    with pytest.raises(BrokerUnavailable, match="stopped, but its process has not ended"):
        hosted.wait(60.0, 5.0)


class RunningService:
    """Represent a running service."""

    address = "127.0.0.1:1"

    async def stop(self) -> None: ...


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_each_start_error_is_reported_and_retried(error: BaseException) -> None:
    tries: list[int] = []
    goes = threading.Event()

    async def start() -> RunningService:
        tries.append(1)
        if not goes.is_set():
            raise error
        return RunningService()

    hosted = HostedService("broker-a", EventLoopThread("broker-a"), start)
    poll_until(lambda: len(tries) > 1, what="it is tried again")
    with pytest.raises(BrokerUnavailable, match=f"does not start: {type(error).__name__}"):
        hosted.get()
    goes.set()
    assert hosted.wait(20.0, 20.0).address == RunningService.address
    hosted.stop()


@pytest.mark.parametrize("name_server", ["127.0.0.1:99999", "127.0.0.1:-5", "a..b:9876", "nowhere", ""])
def test_broker_starts_with_invalid_name_server_address(tmp_path: Path, name_server: str) -> None:
    spec = BrokerSpec("broker-a", "test", str(tmp_path), "127.0.0.1", (name_server,))
    hosted = HostedService("broker-a", EventLoopThread("broker-a"), lambda: BrokerService.start(spec, "node"))
    broker = hosted.wait(30.0, 1.0)
    assert name_server in broker.troubles
    hosted.stop()


def test_start_failing_after_listen_releases_its_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = BrokerSpec("broker-a", "test", str(tmp_path), "127.0.0.1", ())
    announce, failed = LeaderService.announce, []

    async def announcing(service: LeaderService) -> None:
        if not failed:
            failed.append(service)
            raise RuntimeError("nobody expected that")
        await announce(service)

    monkeypatch.setattr(LeaderService, "announce", announcing)
    hosted = HostedService("broker-a", EventLoopThread("broker-a"), lambda: BrokerService.start(spec, "node"))
    broker = hosted.wait(30.0, 10.0)
    [before] = failed
    assert before.address == broker.address
    assert before._probing is not None
    assert before._probing.cancelled()
    assert before._server.draining
    hosted.stop()
