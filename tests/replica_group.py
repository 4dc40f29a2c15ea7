"""Run a broker group without Ray in separate processes: keepers, a name server and replicas.

The test acts as the coordinator: it creates the group, fences, chooses and elects by the real decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from raymq.actors.broker.replication.election import FencedState, NoWinner, Winner, choose_master
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import BrokerUnavailable, ConnectionLost, RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.keeper.keeper_messages import NOTHING, Registered
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire.commands.replication_commands import (
    ReplicaStatus,
    fence_command,
    read_fence_reply,
    read_replica_status,
    replica_status_command,
)
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.tls import client_context
from raymq.storage.failpoints import VARIABLE
from tests.certificates import certificates
from tests.crash.keeper_process import KeeperProcesses
from tests.fork_server import Program
from tests.polling import poll_until

GROUP = "broker-a"
T = TypeVar("T")
PROGRAM = Path(__file__).with_name("replica_process.py")


class ReplicaGroup:
    """A broker group; use `with`. Replicas are numbered from 1."""

    def __init__(
        self,
        folder: Path,
        replicas: int = 2,
        *,
        mode: str = "sync",
        min_in_sync: int = 1,
        keepers: int = 1,
        store: Mapping[str, Any] | None = None,
        tls: bool = False,
        name: str = GROUP,
        shared_with: ReplicaGroup | None = None,
        host: str = "127.0.0.1",
        places: Mapping[int, tuple[str, Sequence[str]]] = MappingProxyType({}),
        lease_seconds: float = 0.0,
    ) -> None:
        """Prepare the group; entering it starts keepers and name server, or uses those of `shared_with`.

        `host` is the address of keepers and name server. `places` has the address of each replica's machine, by default
        `host`, and the beginning of a command that runs there. `lease_seconds` of 0 is the default.
        """
        self._host = host
        self._places = places
        self.folder = folder
        self.name = name
        self.count = replicas
        self._beside = shared_with
        self.tls, client = certificates(folder / "tls") if tls else (None, None)
        #: The TLS settings of clients of the group.
        self.client_tls = client
        self._context = None if client is None else client_context(client)
        self.policy = ReplicationPolicy(mode, min_in_sync)
        self._store = {
            "commitlog_file_bytes": 1 << 20,
            "index_slots": 500,
            "index_entries": 4_000,
            "delay_levels": "1s 2s 30s",
            **(store or {}),
        }
        self.keepers = (
            KeeperProcesses(folder, keepers, self.tls, host, lease_seconds)
            if shared_with is None
            else shared_with.keepers
        )
        self.loop = EventLoopThread("group")
        self.up: dict[int, subprocess.Popen[str]] = {}
        self.addresses: dict[int, str] = {}
        self._paused: set[int] = set()

    def __enter__(self) -> Self:
        if self._beside is None:
            for number in self.keepers.ports:
                self.keepers.start(number)
        self.loop.run(self._begin())
        return self

    async def _begin(self) -> None:
        self._name_service: NameServerService | None = None
        if self._beside is None:
            spec = NameServerSpec(0, str(self.folder), self._host, 0, tls=self.tls)
            self._name_service = await NameServerService.start(spec)
            self.name_server = self._name_service.address
        else:
            self.name_server = self._beside.name_server
        self.pool = ConnectionPool(tls=self._context)
        self.door = SocketQuorumTransport(tls=self._context)
        self.register = KeeperRegister(self.keepers.keepers, self.door)

    def __exit__(self, *_: object) -> None:
        for number in list(self.up):
            self.kill(number)
        if self._beside is None:
            self.keepers.end()
        with contextlib.suppress(Exception):
            self.loop.run(self._end(), 10)
        self.loop.stop()

    async def _end(self) -> None:
        await self.pool.close()
        await self.door.close()
        if self._name_service is not None:
            await self._name_service.stop()

    # -- processes

    def directory(self, number: int) -> Path:
        return self.folder / (self.name if number == 1 else f"{self.name}.{number - 1}")

    def spec(self, number: int, **changes: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "cluster": "test",
            "directory": str(self.directory(number)),
            "host": self._place(number)[0],
            "name_servers": [self.name_server],
            "auto_create_topics": True,
            "append_wait_ms": 5_000,
            "store": self._store,
            "tls": None if self.tls is None else dataclasses.asdict(self.tls),
            "keepers": self.keepers.keepers.to_json(),
            "replica": number - 1,
            "replicas": self.count,
            "replication": self.policy.mode,
            "min_in_sync": self.policy.min_in_sync,
            **changes,
        }

    def start(self, *numbers: int, **changes: Any) -> None:
        for number in numbers or range(1, self.count + 1):
            self.up[number] = self.started(self.spec(number, **changes), inside=self._place(number)[1])
        for number in numbers or range(1, self.count + 1):
            self.addresses[number] = self.address_of(self.up[number])

    def _place(self, number: int) -> tuple[str, Sequence[str]]:
        return self._places.get(number, (self._host, ()))

    @staticmethod
    def started(spec: dict[str, Any], failpoint: str = "", inside: Sequence[str] = ()) -> subprocess.Popen[str]:
        arguments = [str(PROGRAM), json.dumps(spec)]
        pipe, environment = subprocess.PIPE, {**os.environ, VARIABLE: failpoint}
        if not inside:
            return Program(arguments, stdin=pipe, stdout=pipe, text=True, env=environment)
        command = [*inside, sys.executable, *arguments]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    @staticmethod
    def address_of(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            process = self.up.pop(number)
            process.kill()
            process.communicate(timeout=30)
            self._paused.discard(number)

    def stop(self, number: int) -> None:
        process = self.up.pop(number)
        process.communicate(timeout=30)
        assert process.returncode == 0

    def pause(self, number: int) -> None:
        self.up[number].send_signal(signal.SIGSTOP)
        self._paused.add(number)

    def go_on(self, number: int) -> None:
        self.up[number].send_signal(signal.SIGCONT)
        self._paused.discard(number)

    def disk(self, number: int, mode: str) -> None:
        """Set the mode of a replica's disk, see `BrokenDisk`."""
        self.tell(number, f"disk {mode}")

    def tell(self, number: int, line: str) -> None:
        """Send a line to a replica, see `replica_process`, and wait for its "ok"."""
        self.write_line(number, line)
        self._await_said(number, "ok")

    def write_line(self, number: int, line: str) -> None:
        """Send a line to a replica without waiting for its "ok"."""
        process = self.up[number]
        assert process.stdin is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()

    def await_hold(self, number: int) -> None:
        """Wait until a thread of the replica is held."""
        self._await_said(number, "held")

    def _await_said(self, number: int, what: str) -> None:
        process = self.up[number]
        assert process.stdout is not None
        assert process.stdout.readline().strip() == what

    def await_crash(self, number: int) -> None:
        """Wait until a replica has killed itself at its failpoint."""
        process = self.up.pop(number)
        try:
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()
            process.communicate()

    def start_until_crash(self, number: int, failpoint: str) -> None:
        """Start a replica, and wait until it has died at the failpoint."""
        self.up[number] = self.started(self.spec(number), failpoint, self._place(number)[1])
        self.await_crash(number)

    def wipe(self, number: int) -> None:
        shutil.rmtree(self.directory(number))

    # -- the register, and elections

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        return self.loop.run(work, timeout)

    def read(self) -> Registered:
        while True:
            with contextlib.suppress(RegisterError):
                return self.run(self.register.read(self.name))

    @property
    def state(self) -> GroupState:
        value = self.read().value
        assert isinstance(value, GroupState)
        return value

    def found(self) -> None:
        self.run(self.register.change(self.name, NOTHING, GroupState(policy=self.policy)))

    def begin(self) -> None:
        """Create the group, start it, elect replica 1, and wait until all are in sync."""
        self.found()
        self.start()
        self.await_claimed(*range(1, self.count + 1))
        self.elect()
        self.await_in_sync(*range(1, self.count + 1))

    def await_claimed(self, *numbers: int) -> None:
        for number in numbers:
            self._await_claimed(number)

    def _await_claimed(self, number: int) -> None:
        self._await(number, lambda status: status.role in {"replica", "master"}, 20, "is registered")

    def _await(self, number: int, predicate: Callable[[ReplicaStatus], bool], timeout: float, what: str) -> None:
        """Poll a replica's status; connections may end during a role change."""

        def seen() -> bool:
            with contextlib.suppress(RayMQError):
                return predicate(self.status(number))
            return False

        try:
            poll_until(seen, timeout, f"replica {number} {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.told()}") from error

    def status(self, number: int, timeout: float = 5.0) -> ReplicaStatus:
        async def ask() -> ReplicaStatus:
            deadline = time.monotonic() + timeout
            while True:
                left = max(0.1, deadline - time.monotonic())
                try:
                    answer = await self.pool.request(
                        self.addresses[number], replica_status_command(), left, patient=True
                    )
                    return read_replica_status(answer)
                except (BrokerUnavailable, ConnectionLost):  # the role changes, or the process was restarted
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.02)

        return self.run(ask())

    def await_in_sync(self, *numbers: int, timeout: float = 20.0) -> None:
        def there() -> bool:
            state = self.state
            return state.master is not None and state.in_sync == set(numbers)

        try:
            poll_until(there, timeout, f"in sync: {numbers}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.told()}") from error

    def await_serving(self, number: int, timeout: float = 20.0) -> None:
        self._await(number, lambda status: status.serves, timeout, "serves")

    def await_end(self, number: int, of: int) -> None:
        """Wait until a replica has the whole log of another one."""
        self._await(number, lambda status: status.end == self.status(of).end, 20, f"has what {of} has")

    def told(self) -> str:
        lines = [str(self.state)]
        for number in self.up.keys() - self._paused:
            with contextlib.suppress(Exception):
                lines.append(str(self.status(number, 1.0)))
        return "\n".join(lines)

    def elect_without_wait(self, designated: int) -> None:
        """Elect a replica without waiting until it serves."""
        assert self.run(self._elect(designated, None, unclean=False)) == designated

    def elect(
        self, designated: int | None = None, *, asked: Collection[int] | None = None, unclean: bool = False
    ) -> int:
        """Elect a master, wait until it serves, and return its number."""
        winner = self.run(self._elect(designated, asked, unclean=unclean))
        self.await_serving(winner)
        return winner

    async def _elect(self, designated: int | None, asked: Collection[int] | None, *, unclean: bool) -> int:
        deadline = time.monotonic() + 30
        last = ""
        value = (await self.register.settle(self.name)).value
        assert isinstance(value, GroupState)
        if value.master is not None and (asked is None or value.master in asked):
            # A running master must step down, or it would keep its lease.
            with contextlib.suppress(RayMQError):
                await self.pool.request(value.replicas[value.master].address, fence_command(value.epoch + 1), 1.0)
        while time.monotonic() < deadline:
            try:
                now = await self.register.settle(self.name)
                assert isinstance(now.value, GroupState)
                now = await self.register.change(self.name, now, now.value.start_election())
                break
            except RegisterError as error:
                last = str(error)
                await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"no election could begin: {last}")
        while time.monotonic() < deadline:
            assert isinstance(now.value, GroupState)
            answers = await self._fence(now.value, asked)
            made = choose_master(now.value, answers, designated=designated, unclean=unclean)
            if isinstance(made, Winner):
                with contextlib.suppress(RegisterError):
                    elected = now.value.elected(made.replica, made.in_sync, may_lack=made.may_lack)
                    await self.register.change(self.name, now, elected)
                    return made.replica
            assert isinstance(made, NoWinner | Winner)
            last = made.reason if isinstance(made, NoWinner) else ""
            await asyncio.sleep(0.1)
            now = await self.register.read(self.name)
        raise AssertionError(f"nobody was elected: {last}")

    async def _fence(self, state: GroupState, asked: Collection[int] | None) -> dict[int, FencedState]:
        async def one(number: int, address: str) -> tuple[int, FencedState | None]:
            try:
                reply = read_fence_reply(await self.pool.request(address, fence_command(state.epoch), 1.0))
            except RayMQError:
                return number, None
            return number, FencedState(
                reply.replica,
                reply.identity,
                reply.nonce,
                reply.fenced,
                reply.epoch,
                StreamPosition(*reply.end),
                reply.tail_lost,
                reply.healthy,
                reply.priority,
                reply.reaches_keepers,
            )

        numbers = [each for each in state.replicas if asked is None or each in asked]
        found = await asyncio.gather(*(one(each, state.replicas[each].address) for each in numbers))
        return {number: reply for number, reply in found if reply is not None}


def environment() -> dict[str, str]:
    """Return the environment for a program that a test starts."""
    return dict(os.environ)
