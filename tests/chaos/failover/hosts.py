"""A host with its processes, which can be started, killed, paused and emptied."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.chaos.failover.network import Network
from tests.chaos.failover.server_spawner import Server, ServerSpawner

START_SECONDS: Final = 60.0


class Process:
    """A program on a host that prints lines of JSON and reads commands from its standard input."""

    def __init__(self, process: Server | subprocess.Popen[str], log: Path) -> None:
        """`log`: the file of its standard error."""
        self._process = process
        self.log = log
        #: Its last output; empty before its first line.
        self.said: dict[str, Any] = {}
        self._spoken = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def await_first_word(self, timeout: float = START_SECONDS) -> dict[str, Any]:
        """Return its first line; OSError if it ended without one, or timed out."""
        if not self._spoken.wait(timeout) or not self.said:
            raise OSError(f"no word within {timeout} s, or it ended; see {self.log}: {tail(self.log)}")
        return self.said

    def tell(self, line: str) -> None:
        """Send a command; a dead process gets none."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._let_go()

    def stop(self, timeout: float = 60.0) -> int:
        """Close its input and wait for it; return its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._let_go()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # cut off by a kill
                self.said = json.loads(line)
                self._spoken.set()
        self._spoken.set()

    def _let_go(self) -> None:
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Host:
    """A machine with a disk and some servers, such as "names", "keeper" and "broker"."""

    def __init__(self, name: str, network: Network, nursery: ServerSpawner, folder: Path) -> None:
        self.name = name
        self.address = network.address(name)
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.logs = folder / "logs"
        self.logs.mkdir(exist_ok=True)
        self._nursery = nursery
        self._specs: dict[str, dict[str, Any]] = {}
        self.up: dict[str, Process] = {}
        self.paused: set[str] = set()

    @property
    def disk(self) -> Path:
        """Return the folder of its disk."""
        return self.folder

    def has(self, what: str) -> bool:
        """Check whether it has such a server."""
        return what in self._specs

    def is_program(self, what: str) -> bool:
        """Check whether the server is an external program, which is stopped by a kill."""
        return "program" in self._specs[what]

    def spec(self, what: str) -> dict[str, Any]:
        """Return the settings of a server."""
        return self._specs[what]

    def give(self, what: str, spec: Mapping[str, Any]) -> None:
        """Add a server."""
        self._specs[what] = dict(spec)

    def take_away(self, what: str) -> None:
        """Remove a server."""
        self._specs.pop(what, None)

    def begin(self, what: str, **changed: Any) -> Process:
        """Start a server without waiting for it."""
        spec = {**self._specs[what], **changed}
        log = self.logs / f"{self.name}-{what}.log"
        made = self._nursery.make(self.name, "broker" if what == "copy" else what, spec, log)
        process = self.up[what] = Process(made, log)
        return process

    def start(self, what: str) -> None:
        """Start a server and wait until it serves. Repeat it while its address is not free yet."""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.begin(what).await_first_word()
            except OSError:
                self.up.pop(what).kill()
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
            else:
                return

    def start_all(self) -> None:
        """Start all servers that are not running."""
        for what in self._specs:
            if what not in self.up:
                self.begin(what)
        for what in list(self._specs):
            try:
                self.up[what].await_first_word()
            except OSError:
                self.up.pop(what).kill()
                self.start(what)

    def kill(self, what: str) -> None:
        """Kill a server by SIGKILL, if it is running."""
        self.paused.discard(what)
        process = self.up.pop(what, None)
        if process is not None:
            process.kill()

    def kill_all(self) -> None:
        """Kill all servers at once, as a power failure does; written files stay."""
        for process in self.up.values():
            process.signal(signal.SIGKILL)
        for what in list(self.up):
            self.kill(what)

    def pause(self, what: str) -> None:
        if what in self.up:
            self.up[what].signal(signal.SIGSTOP)
            self.paused.add(what)

    def go_on(self) -> None:
        """Resume all paused servers."""
        for what in self.paused:
            if what in self.up:
                self.up[what].signal(signal.SIGCONT)
        self.paused.clear()

    def wipe(self) -> None:
        """Replace the disk by an empty one; the servers must be dead."""
        assert not self.up, f"{self.name} still has {list(self.up)}"
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def stop_all(self) -> dict[str, int]:
        """Stop all servers in order, at once; return their exit codes."""
        self.go_on()
        programs = [what for what in self.up if self.is_program(what)]
        ended = {what: process.stop() for what, process in self.up.items() if what not in programs}
        for what in programs:
            self.kill(what)
        self.up.clear()
        return ended


def tail(log: Path, lines: int = 12) -> str:
    """Return the last lines of a log."""
    if not log.exists():
        return ""
    return "\n" + "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
