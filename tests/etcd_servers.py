"""An etcd cluster of three servers on loopback for tests, which are skipped without an installed `etcd`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from raymq.actors.wire.server import bind
from tests.polling import poll_until

REASON = "no etcd in PATH: install Debian's etcd-server, or etcd 3.4 or later"


class EtcdServers:
    """Three etcd servers. `go_on` starts and resumes servers after `kill` and `pause`."""

    def __init__(self, folder: Path) -> None:
        bound = [bind("127.0.0.1", 0, is_chosen=True) for _ in range(6)]
        ports = [each.getsockname()[1] for each in bound]
        for each in bound:
            each.close()
        self._folder = folder
        self.endpoints = [f"http://127.0.0.1:{port}" for port in ports[:3]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        self._http = urllib3.PoolManager(retries=False, timeout=1.0)

    def go_on(self) -> None:
        for number in self._paused:
            self._processes[number].send_signal(signal.SIGCONT)
        self._paused.clear()
        for number in range(3):
            if number not in self._processes:
                self._processes[number] = self._started(number)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait(30.0)

    def pause(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)
        self._paused.add(number)

    def await_health(self) -> None:
        """Wait until all three servers answer, which needs a leader."""
        for endpoint in self.endpoints:
            poll_until(lambda endpoint=endpoint: self._is_healthy(endpoint), 60.0, f"{endpoint} is healthy")  # type: ignore[misc]

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30.0)
        self._http.clear()

    def _is_healthy(self, endpoint: str) -> bool:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            answer = self._http.request("GET", f"{endpoint}/health")
            return answer.status == 200 and b"true" in answer.data
        return False

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        name, client, peer = f"e{number}", self.endpoints[number], self._peers[number]
        options = {
            "name": name,
            "data-dir": str(self._folder / name),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"e{each}={address}" for each, address in enumerate(self._peers)),
            "logger": "zap",
            "log-level": "error",
        }
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["etcd", *(f"--{option}={value}" for option, value in options.items())], stdout=log, stderr=log
            )


@contextmanager
def etcd_servers(folder: Path) -> Iterator[EtcdServers]:
    if shutil.which("etcd") is None:
        pytest.skip(REASON)
    servers = EtcdServers(folder)
    try:
        servers.go_on()
        servers.await_health()
        yield servers
    finally:
        servers.end()
