"""Run brokers without Ray in separate processes, for benchmarks and for faults of whole processes.

As a program: `broker_process.py NAME DIRECTORY [NAME_SERVER]`. Without a name server it runs one, too. The environment
may have the store's settings as JSON in BROKER_STORE, the host to listen at in BROKER_HOST, and `append_wait_ms` in
BROKER_APPEND_WAIT_MS. The program prints the name server's address once it listens, and then executes the lines of its
standard input until that is closed:

    slow SECONDS    delay every append by so long without blocking others, as a slow network does
    stall SECONDS   block the broker for so long in every append, as a slow disk does
    full            refuse writes as if the disk were full
    free            end `full`
    topics N Q      create the topics new0 to new<N-1>, with Q queues each, all at once

If the environment has LOOP_WATCH, `loop_watch` writes the stops of the loop to that file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raymq.actors.broker.core.topic_manager import TopicChange
from raymq.actors.gc_tuning import tune_gc
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import APPEND_WAIT_MS, BrokerSpec, NameServerSpec
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.stepwise_handlers import stepwise
from raymq.storage.failpoints import VARIABLE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a program, since the tests are not installed

from tests import loop_watch
from tests.fork_server import Program
from tests.leading import start_leader

APPENDS = (RequestCode.APPEND_RECORDS, RequestCode.APPEND_ONE, RequestCode.APPEND_ONE_SEQUENCED)


class BrokerProcess:
    """A broker process. `stop()` ends it cleanly, `kill()` does not; `start()` starts it again."""

    def __init__(
        self,
        name: str,
        directory: Path,
        name_server: str = "",
        *,
        store: Mapping[str, Any] = MappingProxyType({}),
        failpoint: str = "",
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
        append_wait_ms: int = APPEND_WAIT_MS,
        metrics: str = "off",
        is_forked: bool = True,
    ) -> None:
        """Start the process; it ends at `failpoint` if one is given, see `raymq.storage.failpoints`.

        Args:
            inside: the beginning of a command that runs on the machine of the address `host`.
            is_forked: whether the fork server starts the process; benches measure a new interpreter.
        """
        self._arguments = [__file__, name, str(directory / name), *([name_server] if name_server else [])]
        self._inside = inside
        self._is_forked = is_forked and not inside
        self._environment = os.environ | {"BROKER_STORE": json.dumps(dict(store)), "BROKER_HOST": host}
        self._environment["BROKER_APPEND_WAIT_MS"] = str(append_wait_ms)
        self._environment["BROKER_METRICS"] = metrics
        self.start(failpoint)

    def start(self, failpoint: str = "") -> None:
        if hasattr(self, "_process"):
            self.close_pipes()
        pipe, environment = subprocess.PIPE, self._environment | {VARIABLE: failpoint}
        self._process: subprocess.Popen[str]
        if self._is_forked:
            self._process = Program(self._arguments, stdin=pipe, stdout=pipe, text=True, env=environment)
        else:
            command = [*self._inside, sys.executable, *self._arguments]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self._process.stdout is not None
        try:
            self.name_server = self._process.stdout.readline().strip()
        except BaseException:  # the caller is interrupted, and could not end the process
            self.kill()
            self.close_pipes()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def close_pipes(self) -> None:
        """Close the pipes of a dead process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def stop(self, timeout: float = 30) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout)


async def serve(name: str, directory: Path, name_server: str | None) -> None:
    """Run until standard input ends."""
    host = os.environ.get("BROKER_HOST", "127.0.0.1")
    if name_server is None:
        own = await NameServerService.start(NameServerSpec(0, str(directory.parent), host, 0))
        name_server = own.address
    settings = json.loads(os.environ.get("BROKER_STORE", "{}"))
    wait_ms = int(os.environ.get("BROKER_APPEND_WAIT_MS", APPEND_WAIT_MS))
    metrics = os.environ.get("BROKER_METRICS", "off")
    spec = BrokerSpec(name, "test", str(directory), host, (name_server,), append_wait_ms=wait_ms, store=settings)
    spec = replace(spec, metrics=metrics)
    broker = await start_leader(spec, "node")
    tune_gc()
    handlers = dict(broker._server.handlers)
    store = {name: getattr(broker.store, name) for name in ("append", "write")}

    def slow(code: RequestCode, seconds: float) -> Handler:
        async def append(connection: ServerConnection, request: Command) -> Command | None:
            await asyncio.sleep(seconds)
            answer = handlers[code](connection, request)
            return await answer if isawaitable(answer) else answer

        return append if seconds else handlers[code]

    def stalled(name: str, seconds: float) -> Callable[..., Any]:
        def append(*arguments: Any, **options: Any) -> Any:
            time.sleep(seconds)
            return store[name](*arguments, **options)

        return append if seconds else store[name]

    if path := os.environ.get("LOOP_WATCH"):
        loop_watch.watch(Path(path))
    print(name_server, flush=True)
    writer, limit = broker.store._writer, broker.store.config.disk_refuse_ratio
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["slow", seconds]:
                broker._server.handlers = {**handlers, **{code: slow(code, float(seconds)) for code in APPENDS}}
            case ["stall", seconds]:
                for each in store:
                    setattr(broker.store, each, stalled(each, float(seconds)))
            case ["full"]:
                writer._refuse_ratio = 1e-9
            case ["free"]:
                writer._refuse_ratio = limit
            case ["topics", count, queues]:
                changes = (TopicChange(f"new{n}", int(queues), int(queues)) for n in range(int(count)))
                await stepwise(broker.core.topics.change_steps(changes))
                await broker.announce()
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
