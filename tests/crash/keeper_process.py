"""Run keepers, and programs that use them, in processes of their own.

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

CHANGED_GROUP, LED_GROUP = "g", "h"


class KeeperProcesses:
    """Own the founded keepers of one set; each can be started, killed and paused."""

    def __init__(
        self, folder: Path, count: int = 3, tls: Tls | None = None, host: str = "127.0.0.1", lease_seconds: float = 0.0
    ) -> None:
        """`lease_seconds`: length of granted leases, if no lease is outstanding at the start; 0: the default."""
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
        process = self.up[number] = start_program(arguments, failpoint)
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
        """Undo `kill` and `pause` for all keepers."""
        for number in self._paused:
            self.up[number].send_signal(signal.SIGCONT)
        self._paused.clear()
        for number in self.ports.keys() - self.up.keys():
            self.start(number)

    def end(self) -> None:
        for number in list(self.up):
            self.kill(number)


def start_program(arguments: list[str], failpoint: str = "") -> subprocess.Popen[str]:
    """Start this module as a program with these arguments."""
    environment = os.environ | {VARIABLE: failpoint}
    return Program([__file__, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


class LongLeases(Acceptor):
    """Grant leases that last longer than a test."""

    def __init__(self, seconds: float, *arguments: Any, **_: Any) -> None:
        super().__init__(*arguments, just_founded=True, lease_seconds=seconds)


async def run_keeper(number: int, cluster: str, directory: str, host: str, port: int, tls: Tls | None) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    service = await KeeperService.start(KeeperSpec(number, cluster, directory, host, port, tls))
    print(service.address, flush=True)
    await stopping.wait()
    await service.stop()


class Log:
    """Write lines of JSON that survive the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def say(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


def with_mark(state: GroupState, mark: str) -> GroupState:
    """Return the state with a mark that identifies this write."""
    return state.with_replica(1, ReplicaRecord("dir-1", "10.0.0.1:10911", mark))


def mark_of(entry: Registered) -> str:
    return entry.value.replicas[1].nonce if isinstance(entry.value, GroupState) else ""


async def run_changes(register: Register, log: Log, name: str, seconds: float) -> None:
    """Read and change at random. An operation with a begin line and no end line has an unknown outcome."""
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
                known = await register.change(CHANGED_GROUP, known, with_mark(state, mark))
            else:
                known = await register.read(CHANGED_GROUP)
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
                known = await register.read(CHANGED_GROUP)
                log.say(at=began, id=f"{mark}-read", kind="read", before="")
                log.say(at=time.monotonic(), id=f"{mark}-read", outcome="done", value=mark_of(known))
            except RegisterError:
                pass
        await asyncio.sleep(chance.random() * 0.02)


async def run_master(register: Register, log: Log, number: int, seconds: float) -> None:
    """Become master whenever no lease prevents it, renew the lease for a while, and then let others have it."""
    chance = random.Random(number)
    end = time.monotonic() + seconds
    lease = MasterLease(boottime)
    renewals = 0
    while time.monotonic() < end:
        try:
            now = await register.read(LED_GROUP)
            assert isinstance(now.value, GroupState)
            claim = claim_of(now.value)
            if claim is None or claim.replica != number:
                lease.revoke()
                renewals = 0
                await register.change(LED_GROUP, now, now.value.start_election().elected(number, now.value.in_sync))
                continue
            renewals += 1
            if renewals > 3:
                renewals = 0
                if chance.random() < 0.5:
                    lease.revoke()
                    log.say(holder=holder_name(claim), gave_up=boottime())
                    await register.release(LED_GROUP, claim)
                await asyncio.sleep(1.0 + chance.random())
                continue
            began = lease.ask()
            given = await register.renew(LED_GROUP, claim)
            lease.given(began, given)
            if lease.holds:
                log.say(holder=holder_name(claim), begin=boottime(), until=began + given * USED_SHARE)
            await asyncio.sleep(0.2)
        except RegisterHeld as held:
            await asyncio.sleep(min(held.wait_seconds, 0.1 + chance.random() * 0.2))
        except RegisterError:
            lease.revoke()
            await asyncio.sleep(0.05)


def holder_name(claim: LeaseClaim) -> str:
    return f"{claim.replica} in epoch {claim.epoch}"


@contextlib.asynccontextmanager
async def open_register(told: Any) -> AsyncIterator[Register]:
    """Open the register that a program's argument names."""
    if isinstance(told, list):
        with contextlib.closing(EtcdRegister(told, "/test")) as made:
            yield made
        return
    door = SocketQuorumTransport()
    try:
        yield KeeperRegister(KeeperSet.from_json(told), door)
    finally:
        await door.close()


async def run_program(what: str, told: Any, log: Log, who: str, seconds: float) -> None:
    async with open_register(told) as register:
        if what == "change":
            await run_changes(register, log, who, seconds)
        else:
            await run_master(register, log, int(who), seconds)


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "keep":
        number, cluster, directory, host, port, files, lease_seconds = arguments
        if float(lease_seconds):
            vars(local_keeper)["Acceptor"] = partial(LongLeases, float(lease_seconds))
        made = json.loads(files)
        asyncio.run(run_keeper(int(number), cluster, directory, host, int(port), None if made is None else Tls(**made)))
    else:
        register, path, who, seconds = arguments
        with Path(path).open("a", encoding="utf-8") as file:
            asyncio.run(run_program(what, json.loads(register), Log(file), who, float(seconds)))


if __name__ == "__main__":
    main()
