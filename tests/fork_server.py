"""Start Python programs by `fork` from a process that has imported RayMQ, which saves a second each.

    fork_server.py FD    runs programs for the owner of the other end of the socket FD, until that is closed

`Program` replaces `subprocess.Popen` for `[sys.executable, *arguments]`, and `run` replaces `subprocess.run`. Each
program is a separate process with its own environment and standard streams. Use `subprocess` to test the start of an
interpreter or its options (`-W`, `-P`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

_ROOT: Final = str(Path(__file__).resolve().parents[1])
_MAX_BYTES: Final = 1 << 18
#: The content of a status pipe: the process id of a program, and later its status from `waitpid`.
_NUMBER: Final = struct.Struct("=i")
#: Modules that test programs import; not Ray, as they must run without it.
_PRELOADED: Final = (
    "psutil",
    "pytest",
    "raymq.actors.broker.service",
    "raymq.actors.coordinator.service",
    "raymq.actors.gc_tuning",
    "raymq.actors.keeper.serving.service",
    "raymq.actors.names.service",
    "raymq.client",
)


class Program(subprocess.Popen[Any]):
    """A program that the fork server runs: `Program([FILE, ...])`, `Program(["-c", CODE, ...])`, `-m MODULE`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self._status_pipe = -1
        command = [sys.executable, *arguments]
        super().__init__(command, stdin=stdin, stdout=stdout, stderr=stderr, text=text, env=env, cwd=cwd)

    def _execute_child(self, args: Sequence[str], *options: Any) -> None:
        cwd, env = options[4:6]
        pipes = options[9:15]  # the ends of standard input, output and error; -1: the streams of this process
        streams = [own if pipe == -1 else pipe for own, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = [list(args[1:]), str(cwd or Path.cwd()), dict(os.environ if env is None else env)]
        self._status_pipe, theirs = os.pipe()
        try:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, theirs])
        finally:
            os.close(theirs)
        self.pid = self._number()
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return the status as `waitpid` does, which works only for children of this process."""
        if wait_flags & os.WNOHANG and not select.select([self._status_pipe], [], [], 0)[0]:
            return 0, 0
        status = self._number()
        os.close(self._status_pipe)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        return self.returncode

    def _number(self) -> int:
        data = os.read(self._status_pipe, _NUMBER.size)
        if not data:
            raise OSError("the fork server has ended")
        return int(_NUMBER.unpack(data)[0])


def run(
    arguments: Sequence[str],
    *,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = False,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end as `subprocess.run` does; after `timeout` kill it."""
    with Program(arguments, stdout=stdout, stderr=stderr, text=text, env=env) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(program.args, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@functools.cache
def _server() -> socket.socket:
    """Return the connection to this process's server. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_BYTES)
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=_ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "RAYMQ_FAILPOINT": ""},  # a fork keeps no threads
        )
    return ours


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request; return the program's arguments in a child, None in the server."""
    for module in _PRELOADED:
        importlib.import_module(module)
    threads = [path.read_text("utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")]
    others = [name for name in threads[1:] if name != "jemalloc_bg_thd"]  # jemalloc restarts its own
    assert not others, f"threads do not come along with a fork: {others}"
    gc.freeze()
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            woken.recv(_MAX_BYTES)
            _report_ended(running)
        if requests not in ready:
            continue
        request, fds, _, _ = socket.recv_fds(requests, _MAX_BYTES, 4)
        if not request:
            return None
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (requests, woken, wakes):
                end.close()
            for pipe in (*running.values(), fds[3]):
                os.close(pipe)
            return _become(request, fds[:3])
        running[pid] = fds[3]
        os.write(fds[3], _NUMBER.pack(pid))
        for fd in fds[:3]:
            os.close(fd)


def _report_ended(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):  # there is no child
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = running.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, _NUMBER.pack(ended[1]))
            os.close(pipe)


def _become(request: bytes, streams: Sequence[int]) -> list[str]:
    """Take the streams, the folder and the environment of a program; return its arguments."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in set(streams) - {0, 1, 2}:
        os.close(fd)
    arguments, folder, environment = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    from raymq.storage import failpoints

    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    return list(arguments)


def _main_module(arguments: list[str]) -> tuple[types.ModuleType, types.CodeType]:
    """Make `__main__` as `python ARGUMENTS` does, with `sys.argv` and `sys.path`."""
    module = types.ModuleType("__main__")
    what, *others = arguments
    own, file = "", "<string>"
    if what == "-c":
        source = others.pop(0)
    elif what == "-m":
        spec = importlib.util.find_spec(others.pop(0))
        assert spec is not None
        assert spec.origin is not None
        module.__spec__, module.__package__, file = spec, spec.parent, spec.origin
    else:
        assert not what.startswith("-"), f"the fork server does not know the option {what}: use subprocess"
        file = what
        own = str(Path(file).resolve().parent)
    if what != "-c":
        module.__file__ = file
        source = Path(file).read_text("utf-8")
    sys.argv = ["-c" if what == "-c" else file, *others]
    python_path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", *sys.path)]
    sys.path[:0] = [own, *python_path]
    sys.modules["__main__"] = module
    return module, compile(source, file, "exec", dont_inherit=True)


if __name__ == "__main__":
    sys.path[0] = _ROOT  # instead of the tests' folder
    if (program := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        main, code = _main_module(program)
        exec(code, main.__dict__)
