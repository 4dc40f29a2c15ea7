"""Run keepers as processes that are killed at each step of saving, paused, and emptied.

The answers that clients get have one order, and no two masters hold a lease at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from raymq.actors.keeper.errors import RegisterError, RegisterHeld, RegisterUnavailable
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.master_lease import LEASE_SECONDS, USED_SHARE, KeeperLeases, claim_of
from raymq.actors.keeper.register import Register
from raymq.storage.clock import boottime
from raymq.storage.failpoints import NAMES
from tests.crash.keeper_process import (
    CHANGED_GROUP,
    LED_GROUP,
    KeeperProcesses,
    holder_name,
    mark_of,
    open_register,
    start_program,
    with_mark,
)
from tests.etcd_servers import etcd_servers
from tests.linearizable import Changed, Conflicted, LeaseInterval, Operation, Read, is_linearizable, overlapping_leases
from tests.polling import poll_until
from tests.unit.actors.keeper.in_memory_keepers import group
from tests.unit.actors.keeper.served_keepers import ServedKeepers, served_keepers

pytestmark = pytest.mark.crash

T = TypeVar("T")


class Servers(Protocol):
    """Three servers of a register. `go_on` undoes `kill` and `pause`."""

    def kill(self, number: int) -> None: ...
    def pause(self, number: int) -> None: ...
    def go_on(self) -> None: ...


def on_register(keepers: Any, act: Callable[[Register], Coroutine[Any, Any, T]]) -> T:
    """Call `act` with the register that `keepers` describes, as in `keeper_process`."""

    async def run() -> T:
        async with open_register(keepers) as register:
            return await act(register)

    return asyncio.run(run())


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[KeeperProcesses]:
    made = KeeperProcesses(tmp_path)
    yield made
    made.end()


STEPS = [name for name in NAMES if name.startswith(("keeper.", "replace."))]


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("step", STEPS)
def test_keeper_killed_while_saving_keeps_its_answers(tmp_path: Path, step: str) -> None:
    """The keeper dies at about its fifth save; its earlier answers count, with either one of the other keepers."""

    async def scene(others: ServedKeepers, processes: KeeperProcesses) -> None:
        for number in (2, 3):
            await others.start(number)
        register = KeeperRegister(processes.keepers, others.transport())
        now = Registered()
        deadline = time.monotonic() + 60.0
        while processes.up[1].poll() is None:
            assert time.monotonic() < deadline, f"{step} was never reached"
            now = await register.change("g", now, with_mark(group(), f"v{now.version}"))
        assert processes.up[1].returncode == -signal.SIGKILL
        assert now.version >= 1
        await asyncio.to_thread(processes.start, 1)
        for number in (2, 3):
            await others.stop(number)
            assert await KeeperRegister(processes.keepers, others.transport()).read("g") == now
            await others.start(number)

    async def run() -> None:
        processes = KeeperProcesses(tmp_path)
        others = ServedKeepers(tmp_path, processes.ports)
        processes.start(1, f"{step}:5")
        try:
            await scene(others, processes)
        finally:
            await others.end()
            processes.end()

    asyncio.run(run())


def operations_of(logs: list[Path]) -> list[Operation]:
    found: list[Operation] = []
    for log in logs:
        begun: dict[str, dict[str, Any]] = {}
        for line in log.read_text("utf-8").splitlines():
            event = json.loads(line)
            if "kind" in event:
                begun[event["id"]] = event
                continue
            start = begun.pop(event["id"])
            began, ended, before = start["at"], event["at"], start["before"]
            match start["kind"], event["outcome"]:
                case "read", "done":
                    found.append(Read(began, ended, event["value"]))
                case "change", "done":
                    found.append(Changed(began, ended, before, event["value"]))
                case "change", "conflict":
                    found.append(Conflicted(began, ended, before))
                case "change", "unknown":
                    found.append(Changed(began, math.inf, before, event["value"]))
        # A change that was pending when its process ended may have been applied.
        found += [Changed(e["at"], math.inf, e["before"], e["id"]) for e in begun.values() if e["kind"] == "change"]
    return found


def leases_of(logs: list[Path]) -> list[LeaseInterval]:
    found: list[LeaseInterval] = []
    for log in logs:
        own: list[LeaseInterval] = []
        for line in log.read_text("utf-8").splitlines():
            event = json.loads(line)
            if "gave_up" in event:
                at = event["gave_up"]
                own = [LeaseInterval(each.holder, each.begin, min(each.until, at)) for each in own]
            else:
                own.append(LeaseInterval(event["holder"], event["begin"], event["until"]))
        found += own
    return found


@pytest.mark.long
def test_keepers_give_linearizable_state_and_exclusive_leases(processes: KeeperProcesses, tmp_path: Path) -> None:
    processes.go_on()
    run_faults_and_check(processes, (1, 2, 3), processes.keepers.to_json(), tmp_path, seconds=12.0, seed=1)


@pytest.mark.long
def test_etcd_gives_linearizable_state_and_exclusive_leases(tmp_path: Path) -> None:
    with etcd_servers(tmp_path) as servers:
        run_faults_and_check(servers, (0, 1, 2), servers.endpoints, tmp_path, seconds=12.0, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_register_on_keepers_survives_60_seconds_of_faults(
    processes: KeeperProcesses, tmp_path: Path, seed: int
) -> None:
    processes.go_on()
    run_faults_and_check(processes, (1, 2, 3), processes.keepers.to_json(), tmp_path, seconds=60.0, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_register_on_etcd_survives_60_seconds_of_faults(tmp_path: Path, seed: int) -> None:
    with etcd_servers(tmp_path) as servers:
        run_faults_and_check(servers, (0, 1, 2), servers.endpoints, tmp_path, seconds=60.0, seed=seed)


def run_faults_and_check(
    servers: Servers, numbers: Sequence[int], keepers: Any, folder: Path, *, seconds: float, seed: int
) -> None:
    chance = random.Random(seed)
    on_register(keepers, lambda register: register.change(LED_GROUP, Registered(), group(3)))
    changing = [folder / f"change-{each}.log" for each in "ab"]
    leading = [folder / f"lead-{each}.log" for each in "123"]
    argument = json.dumps(keepers)
    users = [start_program(["change", argument, str(log), f"{seed}-{log.stem}", str(seconds)]) for log in changing]
    users += [start_program(["lead", argument, str(log), log.stem[-1], str(seconds)]) for log in leading]
    try:
        poll_until(lambda: all(log.exists() and log.stat().st_size for log in changing), 60.0)
        while any(user.poll() is None for user in users):
            inject_fault(servers, chance.choice(numbers), users[len(changing) :], chance)
    finally:
        for user in users:
            user.send_signal(signal.SIGCONT)
            user.kill()
            user.communicate(timeout=30.0)
    operations = operations_of(changing)
    last = on_register(keepers, lambda register: retry_while_unavailable(lambda: register.read(CHANGED_GROUP)))
    operations.append(Read(time.monotonic(), time.monotonic(), mark_of(last)))
    assert sum(isinstance(each, Changed) and each.ended < math.inf for each in operations) > 10
    assert is_linearizable(operations)
    leases = leases_of(leading)
    assert len({each.holder for each in leases}) >= 2, "nobody followed anybody: the test shows nothing"
    assert overlapping_leases(leases) == []


def inject_fault(servers: Servers, number: int, leaders: list[subprocess.Popen[str]], chance: random.Random) -> None:
    """Inject one fault for a while, and end it."""
    which = chance.randrange(3)
    if which == 0:
        servers.kill(number)
        time.sleep(chance.random() * 0.5)
    elif which == 1:
        servers.pause(number)
        time.sleep(chance.random() * 2.0)
    else:
        leader = leaders[chance.randrange(3)]
        leader.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS * (0.5 + chance.random()))
        leader.send_signal(signal.SIGCONT)
    servers.go_on()
    time.sleep(chance.random() * 0.5)


async def retry_while_unavailable(read: Callable[[], Coroutine[Any, Any, Registered]]) -> Registered:
    deadline = time.monotonic() + 20.0
    while True:
        try:
            return await read()
        except RegisterUnavailable:
            assert time.monotonic() < deadline


def test_emptied_keeper_does_not_answer_until_admitted(processes: KeeperProcesses) -> None:
    for number in (1, 2, 3):
        processes.start(number)
    keepers = processes.keepers.to_json()
    made = on_register(keepers, lambda register: register.change("g", Registered(), group()))
    processes.kill(1)
    shutil.rmtree(processes.file_of(1).parent)
    processes.start(1)
    processes.kill(2)
    with pytest.raises(RegisterUnavailable):
        on_register(keepers, lambda register: register.read("g"))
    processes.start(2)
    assert on_register(keepers, lambda register: register.read("g")) == made


# -- deliberate errors are detected -----------------------------------------------------------------------------


def test_check_detects_keepers_that_lose_accepted_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> list[Operation]:
        history: list[Operation] = []
        async with served_keepers(tmp_path) as keepers:
            monkeypatch.setattr(DurableKeeperFile, "save", lambda *_: None)
            register = keepers.register()
            began = time.monotonic()
            made = await register.change("g", Registered(), with_mark(group(), "a"))
            history.append(Changed(began, time.monotonic(), "", mark_of(made)))
            for number in (1, 2, 3):
                await keepers.stop(number)
                await keepers.start(number)
            began = time.monotonic()
            read = await keepers.register().read("g")
            history.append(Read(began, time.monotonic(), mark_of(read)))
        return history

    assert not is_linearizable(asyncio.run(scene()))


@pytest.mark.parametrize("careful", [True, False])
def test_check_detects_keepers_without_quiet_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careful: bool
) -> None:
    if not careful:
        monkeypatch.setattr(KeeperLeases, "start_quiet_period", lambda _: None)

    async def lease_of(register: KeeperRegister, now: Registered) -> LeaseInterval:
        claim = claim_of(now.value)
        assert claim is not None
        began = boottime()
        given = await register.renew("h", claim)
        return LeaseInterval(holder_name(claim), boottime(), began + given * USED_SHARE)

    async def scene() -> list[LeaseInterval]:
        async with served_keepers(tmp_path) as keepers:
            register = keepers.register()
            state = group(3).start_election().elected(1, [1, 2])
            now = await register.change("h", Registered(), state)
            held = [await lease_of(register, now)]
            for number in (1, 2, 3):
                await keepers.stop(number)
                await keepers.start(number)
            assert boottime() < held[0].until, "the machine was too slow: the test shows nothing"
            successor = keepers.register()
            while len(held) < 2:
                try:
                    now = await successor.change("h", now, state.start_election().elected(2, [1, 2]))
                    held.append(await lease_of(successor, now))
                except RegisterHeld as refused:
                    await asyncio.sleep(refused.wait_seconds)
                except RegisterError:
                    now = await retry_while_unavailable(lambda: successor.read("h"))
            return held

    assert (overlapping_leases(asyncio.run(scene())) == []) == careful


def test_each_saving_step_has_a_failpoint() -> None:
    assert len(STEPS) == 6
    assert {"keeper.before_save", "keeper.after_save"} <= set(STEPS)
