"""Start servers without import time: a process with all modules imported forks each of them.

    server_spawner.py FD    starts servers for the owner of the other end of socket FD, until that is closed

So servers start as fast as in Ray's workers, which wait with all modules imported, and a run's time goes to its faults.
Each is a process of its own, in the network namespace of its host, with pipes and a log of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # run as a program: the tests' folder is not installed

from tests.chaos.failover.set_clock import SetClock

_NETWORK_NAMESPACE: Final = 0x40000000
_MAX_BYTES: Final = 1 << 16
_PATIENCE_SECONDS: Final = 60.0


class Server:
    """A started process; the needed part of `subprocess.Popen`."""

    def __init__(self, nursery: ServerSpawner, pid: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._nursery = nursery

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._nursery.ended.get(self.pid)

    def wait(self, timeout: float) -> int:
        """Return its exit code; TimeoutExpired if it has not ended in time."""
        with self._nursery.news:
            if not self._nursery.news.wait_for(lambda: self.poll() is not None, timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._nursery.ended[self.pid]

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ServerSpawner:
    """The client's side of the spawner process. Thread-safe.

    Attributes:
        ended: the exit codes of ended servers, by pid.
        news: notified of each started and ended server.
    """

    def __init__(self, log: Path) -> None:
        self.ended: dict[int, int] = {}
        self.news = threading.Condition()
        self._begun: list[int] = []
        self._making = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as errors:
            command = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its threads do not survive a fork
            )
        threading.Thread(target=self._hear, daemon=True).start()

    def make(self, host: str, what: str, spec: dict[str, Any], log: Path) -> Server:
        """Start a server on a host; its standard error goes to `log`."""
        (its_stdin, stdin), (stdout, its_stdout) = os.pipe(), os.pipe()
        with self._making, log.open("ab") as errors:
            request = json.dumps([host, what, spec]).encode()
            socket.send_fds(self._socket, [request], [its_stdin, its_stdout, errors.fileno()])
            os.close(its_stdin)
            os.close(its_stdout)
            with self.news:
                if not self.news.wait_for(lambda: self._begun, _PATIENCE_SECONDS):
                    raise OSError(f"no {what} of {host} within {_PATIENCE_SECONDS} s")
                pid = self._begun.pop()
        return Server(self, pid, os.fdopen(stdin, "w"), os.fdopen(stdout))

    def close(self) -> None:
        """End the spawner process."""
        self._socket.shutdown(socket.SHUT_RDWR)  # a thread waits for it
        self._process.wait(30.0)
        self._socket.close()

    def _hear(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while report := self._socket.recv(_MAX_BYTES):
                word, pid, code = json.loads(report)
                with self.news:
                    if word == "begun":
                        self.ended.pop(pid, None)  # the pid was reused
                        self._begun.append(pid)
                    else:
                        self.ended[pid] = code
                    self.news.notify_all()


def main(requests: socket.socket, clock: SetClock) -> None:
    """Start requested servers, and report ended ones."""
    serving = importlib.import_module("tests.chaos.failover.serving")
    importlib.import_module("raymq.actors.broker.service").warm_up()
    assert threading.active_count() == 1, "a thread does not come along with a fork"
    gc.freeze()
    requests.settimeout(0.02)
    while True:
        try:
            request, fds, _, _ = socket.recv_fds(requests, _MAX_BYTES, 3)
        except TimeoutError:
            _report_ended(requests)
            continue
        if not request:
            return
        host, what, spec = json.loads(request)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                requests.close()
                _enter_network(host, fds)
                if "program" in spec:  # an external program: it prints nothing and reads no commands
                    os.write(1, b'{"program": true}\n')
                    os.execvp(spec["program"][0], spec["program"])
                serving.main(what, spec, clock)
                code = 0
            except BaseException:  # noqa: BLE001 - the process ends here
                traceback.print_exc()
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
        requests.send(json.dumps(["begun", pid, 0]).encode())


def _report_ended(requests: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):  # no child process
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            requests.send(json.dumps(["ended", ended[0], os.waitstatus_to_exitcode(ended[1])]).encode())


def _enter_network(host: str, fds: list[int]) -> None:
    """Enter the host's network, and use the passed descriptors as standard input, output and error."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    namespace = os.open(f"/run/netns/{host}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NETWORK_NAMESPACE):
        raise OSError(ctypes.get_errno(), f"no network of {host}")
    os.close(namespace)
    random.seed()


if __name__ == "__main__":
    own_clock = SetClock()
    own_clock.install()  # before modules are imported that keep one of the replaced functions
    main(socket.socket(fileno=int(sys.argv[1])), own_clock)
