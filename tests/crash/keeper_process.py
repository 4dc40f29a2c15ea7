"""Keepers, and users of them, in processes of their own.

    keeper_process.py keep NUMBER CLUSTER DIRECTORY HOST PORT TLS LEASE    a keeper, until SIGTERM; prints its address
    keeper_process.py change REGISTER LOG NAME SECONDS      changes and reads the group "g", and logs it
    keeper_process.py lead REGISTER LOG NUMBER SECONDS      is master of the group "h" at times, and logs its leases

TLS is JSON: the fields of a `Tls`, or null. LEASE: seconds; 0: as ever. REGISTER is JSON: a set of keepers, or a list
of etcd's addresses. Logs are lines of JSON; their times are of clocks that all processes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from raymq.actors.keeper.acceptor import Acceptor
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterHeld, RegisterUnknown
from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.master_lease import USED_SHARE, MasterLease, claim_of
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving import local_keeper
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.actors.keeper.serving.service import KeeperService
from raymq.actors.protocol import KeeperSpec, Tls
from raymq.actors.wire.server import bind
from raymq.storage.clock import boottime
from raymq.storage.failpoints import VARIABLE
from tests.fork_server import Program

CHANGED, LED = "g", "h"


class KeeperProcesses:
    """The keepers of one set, founded, each to be started, killed and paused."""

    def __init__(
        self, folder: Path, count: int = 3, tls: Tls | None = None, host: str = "127.0.0.1", lease_seconds: float = 0.0
    ) -> None:
        """`lease_seconds`: of the leases that they give, where they know from the beginning that none is out."""
        self._tls = json.dumps(None if tls is None else dataclasses.asdict(tls))
        self._host = host
        self._lease_seconds = lease_seconds
        bound = [bind(host, 0, is_chosen=True) for _ in range(count)]
        self.ports = {number: each.getsockname()[1] for number, each in enumerate(bound, 1)}
        for each in bound:
            each.close()
        self._folder = folder
        members = {number: KeeperMember(f"{host}:{port}", f"made-{number}") for number, port in self.ports.items()}
        self.keepers = KeeperSet(1, members)
        self.up: dict[int, subprocess.Popen[str]] = {}
        self._paused: set[int] = set()
        for number, member in members.items():
            self.file_of(number).parent.mkdir(parents=True, exist_ok=True)
            DurableKeeperFile(self.file_of(number)).save(KeeperRecord("c", number, member.incarnation, self.keepers))

    def file_of(self, number: int) -> Path:
        return self._folder / f"host-{number}" / f"keeper-{number}.record"

    def start(self, number: int, failpoint: str = "") -> None:
        directory = str(self.file_of(number).parent)
        arguments = ["keep", str(number), "c", directory, self._host, str(self.ports[number]), self._tls]
        arguments.append(str(self._lease_seconds))
        process = self.up[number] = started(arguments, failpoint)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == self.keepers.members[number].address

    def kill(self, number: int) -> None:
        process = self.up.pop(number)
        process.kill()
        process.communicate(timeout=30.0)

    def pause(self, number: int) -> None:
        self.up[number].send_signal(signal.SIGSTOP)
        self._paused.add(number)

    def go_on(self) -> None:
        """End what `kill` and `pause` began."""
        for number in self._paused:
            self.up[number].send_signal(signal.SIGCONT)
        self._paused.clear()
        for number in self.ports.keys() - self.up.keys():
            self.start(number)

    def end(self) -> None:
        for number in list(self.up):
            self.kill(number)


def started(arguments: list[str], failpoint: str = "") -> subprocess.Popen[str]:
    """The program below, with these arguments."""
    environment = os.environ | {VARIABLE: failpoint}
    return Program([__file__, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


class LongLeases(Acceptor):
    """A keeper whose leases last longer than a test."""

    def __init__(self, seconds: float, *arguments: Any, **_: Any) -> None:
        super().__init__(*arguments, just_founded=True, lease_seconds=seconds)


async def keep(number: int, cluster: str, directory: str, host: str, port: int, tls: Tls | None) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    service = await KeeperService.start(KeeperSpec(number, cluster, directory, host, port, tls))
    print(service.address, flush=True)
    await stopping.wait()
    await service.stop()


class Log:
    """Lines that survive the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def say(self, **told: Any) -> None:
        self._file.write(json.dumps(told) + "\n")
        self._file.flush()


def marked(state: GroupState, mark: str) -> GroupState:
    """The same, but with this mark, by which it is known again."""
    return state.with_replica(1, ReplicaRecord("dir-1", "10.0.0.1:10911", mark))


def mark_of(entry: Registered) -> str:
    return entry.value.replicas[1].nonce if isinstance(entry.value, GroupState) else ""


async def change(register: Register, log: Log, name: str, seconds: float) -> None:
    """Read and change at random. An operation that is logged as begun, and not as ended, has an unknown outcome."""
    chance = random.Random(name)
    known = Registered()
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
        mark, before = f"{name}-{count}", mark_of(known)
        changes = chance.random() < 0.7
        log.say(at=time.monotonic(), id=mark, kind="change" if changes else "read", before=before)
        outcome, value = "done", mark
        try:
            if changes:
                state = known.value if isinstance(known.value, GroupState) else GroupState()
                known = await register.change(CHANGED, known, marked(state, mark))
            else:
                known = await register.read(CHANGED)
                value = mark_of(known)
        except RegisterConflict:
            outcome = "conflict"
        except RegisterUnknown:
            outcome = "unknown"
        except RegisterError:
            outcome = "not done"
        log.say(at=time.monotonic(), id=mark, outcome=outcome, value=value)
        if outcome != "done":
            known = Registered()
            try:
                began = time.monotonic()
                known = await register.read(CHANGED)
                log.say(at=began, id=f"{mark}-read", kind="read", before="")
                log.say(at=time.monotonic(), id=f"{mark}-read", outcome="done", value=mark_of(known))
            except RegisterError:
                pass
        await asyncio.sleep(chance.random() * 0.02)


async def lead(register: Register, log: Log, number: int, seconds: float) -> None:
    """Become master whenever there is no lease in the way, renew it for a while, and let others have it."""
    chance = random.Random(number)
    end = time.monotonic() + seconds
    lease = MasterLease(boottime)
    renewals = 0
    while time.monotonic() < end:
        try:
            now = await register.read(LED)
            assert isinstance(now.value, GroupState)
            claim = claim_of(now.value)
            if claim is None or claim.replica != number:
                lease.revoke()
                renewals = 0
                await register.change(LED, now, now.value.start_election().elected(number, now.value.in_sync))
                continue
            renewals += 1
            if renewals > 3:
                renewals = 0
                if chance.random() < 0.5:
                    lease.revoke()
                    log.say(holder=told(claim), gave_up=boottime())
                    await register.release(LED, claim)
                await asyncio.sleep(1.0 + chance.random())
                continue
            began = lease.ask()
            given = await register.renew(LED, claim)
            lease.given(began, given)
            if lease.holds:
                log.say(holder=told(claim), begin=boottime(), until=began + given * USED_SHARE)
            await asyncio.sleep(0.2)
        except RegisterHeld as held:
            await asyncio.sleep(min(held.wait_seconds, 0.1 + chance.random() * 0.2))
        except RegisterError:
            lease.revoke()
            await asyncio.sleep(0.05)


def told(claim: LeaseClaim) -> str:
    return f"{claim.replica} in epoch {claim.epoch}"


@contextlib.asynccontextmanager
async def register_of(told: Any) -> AsyncIterator[Register]:
    """The register that a program's argument names."""
    if isinstance(told, list):
        with contextlib.closing(EtcdRegister(told, "/test")) as made:
            yield made
        return
    door = SocketQuorumTransport()
    try:
        yield KeeperRegister(KeeperSet.from_json(told), door)
    finally:
        await door.close()


async def use(what: str, told: Any, log: Log, who: str, seconds: float) -> None:
    async with register_of(told) as register:
        if what == "change":
            await change(register, log, who, seconds)
        else:
            await lead(register, log, int(who), seconds)


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "keep":
        number, cluster, directory, host, port, files, lease_seconds = arguments
        if float(lease_seconds):
            vars(local_keeper)["Acceptor"] = partial(LongLeases, float(lease_seconds))
        made = json.loads(files)
        asyncio.run(keep(int(number), cluster, directory, host, int(port), None if made is None else Tls(**made)))
    else:
        register, path, who, seconds = arguments
        with Path(path).open("a", encoding="utf-8") as file:
            asyncio.run(use(what, json.loads(register), Log(file), who, float(seconds)))


if __name__ == "__main__":
    main()
