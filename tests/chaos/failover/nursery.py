"""Servers without the seconds that a Python needs to import them: a process that has done so makes each by `fork`.

    nursery.py FD    makes servers for who has the other end of the socket FD, until that is closed

So servers start as fast as in workers of Ray's, which wait with all imported, and a run's time goes to its faults. Each
is a process of its own, in the network namespace of its host, with pipes and a log of its own.
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
    """A process that a nursery has made; the part of `subprocess.Popen` that is needed of it."""

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._nursery = nursery

    def poll(self) -> int | None:
        """Its exit code; None: it has not ended."""
        return self._nursery.ended.get(self.pid)

    def wait(self, timeout: float) -> int:
        """Its exit code; TimeoutExpired: it has not ended in time."""
        with self._nursery.news:
            if not self._nursery.news.wait_for(lambda: self.poll() is not None, timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._nursery.ended[self.pid]

    def kill(self) -> None:
        """SIGKILL."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """The end of who wants servers. Thread-safe.

    Attributes:
        ended: the exit codes of those that have ended, by their pids.
        news: is told of each.
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
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its threads would not come along with a fork
            )
        threading.Thread(target=self._hear, daemon=True).start()

    def make(self, host: str, what: str, spec: dict[str, Any], log: Path) -> Server:
        """A server on a host; what it says on its standard error goes to `log`."""
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
        """Make no more."""
        self._socket.shutdown(socket.SHUT_RDWR)  # a thread waits for it
        self._process.wait(30.0)
        self._socket.close()

    def _hear(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while told := self._socket.recv(_MAX_BYTES):
                word, pid, code = json.loads(told)
                with self.news:
                    if word == "begun":
                        self.ended.pop(pid, None)  # another one had that number
                        self._begun.append(pid)
                    else:
                        self.ended[pid] = code
                    self.news.notify_all()


def main(asked: socket.socket, clock: SetClock) -> None:
    """Make what is asked for, and tell who has ended."""
    serving = importlib.import_module("tests.chaos.failover.serving")
    importlib.import_module("raymq.actors.broker.warm_up").warm_up()
    assert threading.active_count() == 1, "a thread does not come along with a fork"
    gc.freeze()
    asked.settimeout(0.02)
    while True:
        try:
            request, fds, _, _ = socket.recv_fds(asked, _MAX_BYTES, 3)
        except TimeoutError:
            _tell_ended(asked)
            continue
        if not request:
            return
        host, what, spec = json.loads(request)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                asked.close()
                _move_in(host, fds)
                if "program" in spec:  # not ours: it says nothing, and does not obey
                    os.write(1, b'{"program": true}\n')
                    os.execvp(spec["program"][0], spec["program"])
                serving.main(what, spec, clock)
                code = 0
            except BaseException:  # noqa: BLE001 - it is this process's last word
                traceback.print_exc()
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
        asked.send(json.dumps(["begun", pid, 0]).encode())


def _tell_ended(asked: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):  # there is none
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            asked.send(json.dumps(["ended", ended[0], os.waitstatus_to_exitcode(ended[1])]).encode())


def _move_in(host: str, fds: list[int]) -> None:
    """Go to the host's network, and take what was given for standard input, output and error."""
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
    own_clock.install()  # before those are imported who keep one of the functions that it replaces
    main(socket.socket(fileno=int(sys.argv[1])), own_clock)
