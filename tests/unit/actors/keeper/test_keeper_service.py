"""Test keepers behind sockets: their answers, their refusals, and how clients reach them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from raymq.actors.errors import ProtocolError, RayMQError, ServerBusy
from raymq.actors.keeper.errors import RegisterHeld, RegisterUnavailable
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import Answer, Inquire, KeeperCall, LeaseClaim, Registered, Standing
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.proposal import Answers, calls_to_all
from raymq.actors.keeper.serving.decision_thread import DecisionThread
from raymq.actors.keeper.serving.handlers import handlers
from raymq.actors.keeper.serving.keeper_channel import KeeperChannel
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.actors.keeper.serving.service import KeeperService
from raymq.actors.protocol import KeeperSpec
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.keeper_commands import ask_keeper_command, keeper_status_command, read_keeper_status
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import client_context
from raymq.storage.errors import InvalidInput, StoreLocked
from tests.certificates import certificates
from tests.unit.actors.keeper.in_memory_keepers import group, group_with_master
from tests.unit.actors.keeper.served_keepers import ServedKeepers, record_of, served_keepers, spec_of
from tests.wire_server import serving


async def state_of(service: KeeperService) -> str:
    pool = ConnectionPool()
    try:
        return read_keeper_status(await pool.request(service.address, keeper_status_command(), 5.0)).state
    finally:
        await pool.close()


def run_with_three_keepers(tmp_path: Path, scene: Callable[[ServedKeepers], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with served_keepers(tmp_path) as keepers:
            await scene(keepers)

    asyncio.run(run())


async def read_when_available(register: KeeperRegister) -> Registered:
    """Read as soon as a majority answers, which may take long on a busy machine."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                return await register.read("g")
            except RegisterUnavailable:
                await asyncio.sleep(0.05)


def test_change_survives_restart_of_all_keepers(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        register = keepers.register()
        made = await register.change("g", Registered(), group())
        for number in (1, 2, 3):
            await keepers.stop(number)
        with pytest.raises(RegisterUnavailable):
            await register.read("g")
        for number in (1, 2, 3):
            service = await keepers.start(number)
            assert service.address == keepers.keepers.members[number].address
        assert await read_when_available(keepers.register()) == made
        assert await read_when_available(register) == made, "its channels have connected anew"

    run_with_three_keepers(tmp_path, scene)


def test_two_keepers_of_three_decide_and_one_does_not(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        await keepers.stop(3)
        register = keepers.register()
        made = await register.change("g", Registered(), group())
        await keepers.stop(2)
        with pytest.raises(RegisterUnavailable):
            await register.change("g", made, group().with_set([1]))

    run_with_three_keepers(tmp_path, scene)


def test_restarted_keeper_is_quiet_for_one_lease(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        now = await keepers.register().change("g", Registered(), group_with_master())
        assert await state_of(keepers.up[1]) == "running"
        for number in (1, 2, 3):
            await keepers.stop(number)
            assert await state_of(await keepers.start(number)) == "quiet"
        assert isinstance(now.value, GroupState)
        with pytest.raises(RegisterHeld):
            await keepers.register().change("g", now, now.value.start_election())
        assert await keepers.register().renew("g", LeaseClaim(1, "n1", 1)) > 0

    run_with_three_keepers(tmp_path, scene)


def test_keeper_with_damaged_file_reports_it_and_has_no_vote(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        made = await keepers.register().change("g", Registered(), group())
        await keepers.stop(1)
        damaged = keepers.file_of(1).read_bytes().replace(b'"accepted"', b'"acceptet"')
        keepers.file_of(1).write_bytes(damaged)
        service = await keepers.start(1)
        assert await state_of(service) == "damaged"
        assert await keepers.register().read("g") == made
        assert keepers.file_of(1).read_bytes() == damaged, "nothing was made in its place"
        with pytest.raises(RayMQError):
            await service.found(record_of(1, keepers.keepers))
        await keepers.stop(2)
        with pytest.raises(RegisterUnavailable):
            await keepers.register().read("g")

    run_with_three_keepers(tmp_path, scene)


def test_emptied_keeper_has_no_vote_until_readmission(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        register = keepers.register()
        made = await register.change("g", Registered(), group())
        await keepers.stop(1)
        shutil.rmtree(keepers.file_of(1).parent)
        service = await keepers.start(1)
        assert await state_of(service) == "empty"
        await keepers.stop(2)
        with pytest.raises(RegisterUnavailable):
            await keepers.register().read("g")
        await keepers.start(2)
        await register.remove_keeper(1)
        member = KeeperMember(service.address, "made-again")
        await service.reset(KeeperRecord("c", 1, "made-again"))
        after = await register.add_keeper(1, member)
        assert after.members[1] == member
        await keepers.stop(2)
        assert await keepers.register(after).read("g") == made

    run_with_three_keepers(tmp_path, scene)


def test_client_detects_older_copy_of_keeper_file(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        register = keepers.register()
        first = await register.change("g", Registered(), group())
        copy = {number: keepers.file_of(number).read_bytes() for number in (1, 2, 3)}
        second = await register.change("g", first, group().with_set([1]))
        await keepers.stop(3)
        await register.read("g")  # the majority needs keeper 1, so the client learns its save count
        await keepers.start(3)
        await keepers.stop(1)
        keepers.file_of(1).write_bytes(copy[1])
        service = await keepers.start(1)
        assert await state_of(service) in {"quiet", "running"}, "by itself it cannot know"
        await keepers.stop(2)
        with pytest.raises(RegisterUnavailable):
            await register.read("g")
        assert await state_of(service) == "older copy"
        with pytest.raises(RegisterUnavailable):
            await keepers.register().read("g")  # a client that never asked keeper 1 before is protected, too
        await keepers.start(2)
        assert await keepers.register().read("g") == second
        await keepers.stop(1)
        assert await state_of(await keepers.start(1)) == "empty", "no start takes the copy for its file"
        assert keepers.file_of(1).with_suffix(".older-copy").read_bytes() == copy[1]

    run_with_three_keepers(tmp_path, scene)


def test_founding_never_replaces_existing_keeper(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        made = await keepers.register().change("g", Registered(), group())
        await keepers.up[1].found(record_of(1, keepers.keepers))
        other = dataclasses.replace(record_of(1, keepers.keepers), incarnation="other")
        with pytest.raises(InvalidInput, match="no other record"):
            await keepers.up[1].found(other)
        with pytest.raises(InvalidInput, match="keeper 1 of c"):
            await keepers.up[1].found(dataclasses.replace(other, cluster="another"))
        await keepers.stop(2)
        assert await keepers.register().read("g") == made

    run_with_three_keepers(tmp_path, scene)


def test_second_process_of_keeper_raises_store_locked(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        with pytest.raises(StoreLocked):
            await KeeperService.start(spec_of(1, keepers.folder))
        await keepers.stop(1)
        await keepers.start(1)

    run_with_three_keepers(tmp_path, scene)


def test_keeper_serves_after_malformed_requests(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        address = keepers.up[1].address
        pool = ConnectionPool()
        for body in (b"", b"{}", b"[" * 40_000, b'{"set": 1, "to": "x", "kind": "Exec"}', b"\xff" * 1000):
            with pytest.raises(RayMQError):
                await pool.request(address, ask_keeper_command(body, 0), 5.0)
        for seen in (-1, "many", None, 1 << 64 - 1):
            command = Command(RequestCode.ASK_KEEPER, {"seen": seen}, serialization=Serialization.MSGPACK)
            with pytest.raises(RayMQError):
                await pool.request(address, command, 5.0)
        await pool.close()
        await keepers.register().change("g", Registered(), group())

    run_with_three_keepers(tmp_path, scene)


def test_overloaded_decision_thread_refuses_and_keeps_order() -> None:
    async def scene() -> None:
        thread = DecisionThread("test", most_waiting=3)
        go = threading.Event()
        made: list[int] = []
        deciding = [thread.decide(lambda: go.wait(10.0))]
        deciding += [thread.decide(lambda each=each: bool(made.append(each)) or True) for each in (1, 2)]  # type: ignore[misc]
        with pytest.raises(ServerBusy):
            thread.decide(bool)
        go.set()
        assert await asyncio.gather(*deciding) == [True, True, True]
        assert made == [1, 2]
        with pytest.raises(ZeroDivisionError):
            await thread.decide(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="SystemExit"):
            await thread.decide(lambda: exec("raise SystemExit"))
        assert await thread.decide(lambda: 5) == 5
        await thread.stop(5.0)

    asyncio.run(scene())


def test_slow_save_does_not_block_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        go = threading.Event()
        save = DurableKeeperFile.save

        def slowly(self: DurableKeeperFile, record: KeeperRecord) -> None:
            assert go.wait(10.0)
            save(self, record)

        monkeypatch.setattr(DurableKeeperFile, "save", slowly)
        changing = asyncio.ensure_future(keepers.register().change("g", Registered(), group()))
        # The event loop still serves this request while the disks of all three keepers hang.
        assert await state_of(keepers.up[1]) == "running"
        assert not changing.done()
        go.set()
        assert (await changing).version == 1

    run_with_three_keepers(tmp_path, scene)


SHORT = ServerLimits(drain_seconds=0.1)


def hung() -> dict[int, Any]:
    return {RequestCode.ASK_KEEPER: lambda *_: asyncio.get_running_loop().create_future()}


def test_transport_returns_after_enough_answers(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        async with serving(hung(), limits=SHORT) as (server, address):
            members = {**keepers.keepers.members, 3: KeeperMember(address, "made-3")}
            known = replace(keepers.keepers, members=members)
            loop = asyncio.get_running_loop()
            transport = keepers.transport()
            received: list[Answers] = []

            def has_two_answers(answers: Answers) -> bool:
                received.append(answers)
                return len(answers) == 2

            began = loop.time()
            answers = await transport.ask(known, calls_to_all(known, Inquire("g")), has_two_answers)
            assert set(answers) == {1, 2}
            assert loop.time() - began < transport._ask_seconds
            assert (
                await transport.ask(known, calls_to_all(known, Inquire("g")), lambda each: len(each) == 3)
            ).keys() == {
                1,
                2,
            }
            assert server.connections, "it was asked, and has not answered"

    run_with_three_keepers(tmp_path, scene)


@pytest.mark.parametrize("waits", [True, False])
def test_silent_connection_is_replaced(tmp_path: Path, waits: bool) -> None:
    """Also replace a connection whose answers no caller awaits, because other keepers have answered.

    The connection would be missing as soon as these keepers stop.
    """

    async def scene(keepers: ServedKeepers) -> None:
        hung: set[ServerConnection] = set()

        def ask(connection: ServerConnection, request: Command) -> Any:
            if not hung or connection in hung:  # as after a partition: this connection stays silent
                hung.add(connection)
                return asyncio.get_running_loop().create_future()
            return handlers(keepers.up[1].keeper)[RequestCode.ASK_KEEPER](connection, request)

        async with serving({RequestCode.ASK_KEEPER: ask}, limits=SHORT) as (_, address):
            channel = KeeperChannel(address, silent_seconds=0.1)
            call = KeeperCall(1, "made-1", Inquire("g"))
            while len(hung) == 0:
                with contextlib.suppress(RayMQError, TimeoutError):
                    await asyncio.wait_for(channel.ask(call, 0.5 if waits else 5.0), 0.5 if not waits else 5.0)
            answer: Answer = await channel.ask(call, 5.0)
            assert isinstance(answer, Standing)
            channel.close()
            with pytest.raises(RayMQError):
                await channel.ask(call, 0.05)

    run_with_three_keepers(tmp_path, scene)


def test_idle_connection_is_kept(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        async with serving({RequestCode.ASK_KEEPER: handlers(keepers.up[1].keeper)[RequestCode.ASK_KEEPER]}) as (
            server,
            address,
        ):
            channel = KeeperChannel(address, silent_seconds=0.05)
            call = KeeperCall(1, "made-1", Inquire("g"))
            await channel.ask(call, 5.0)
            (first,) = server.connections
            await asyncio.sleep(0.1)  # longer than a request may stay unanswered
            await channel.ask(call, 5.0)
            assert server.connections == {first}
            channel.close()

    run_with_three_keepers(tmp_path, scene)


def test_transport_never_raises(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        def nonsense(_: object, request: Command) -> Command:
            return request.response(0, {"saves": "x"}, body=b"{}")

        async with serving({RequestCode.ASK_KEEPER: nonsense}) as (_, address):
            members = {
                1: KeeperMember("127.0.0.1:1", "a"),
                2: KeeperMember("nowhere", "b"),
                3: KeeperMember(address, "c"),
                4: KeeperMember("[::1]:99999", "d"),
            }
            known = KeeperSet(1, members)
            assert await keepers.transport().ask(known, calls_to_all(known, Inquire("g")), lambda _: False) == {}
            transport = keepers.transport()
            await transport.close()
            assert await transport.ask(known, calls_to_all(known, Inquire("g")), lambda _: False) == {}

    run_with_three_keepers(tmp_path, scene)


def test_answer_with_lower_save_count_raises_protocol_error(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        saves = 7

        def ask(_: object, request: Command) -> Command:
            body = b'{"kind": "Released"}'
            return request.response(0, {"saves": saves}, body=body)

        async with serving({RequestCode.ASK_KEEPER: ask}) as (_, address):
            channel = KeeperChannel(address)
            call = KeeperCall(1, "a", Inquire("g"))
            await channel.ask(call, 5.0)
            saves = 6
            with pytest.raises(ProtocolError, match="older copy"):
                await channel.ask(call, 5.0)
            saves = 1
            await channel.ask(dataclasses.replace(call, incarnation="b"), 5.0)
            channel.close()

    run_with_three_keepers(tmp_path, scene)


def test_transport_prefers_known_keeper_addresses(tmp_path: Path) -> None:
    async def scene(keepers: ServedKeepers) -> None:
        stale = {number: replace(each, address="") for number, each in keepers.keepers.members.items()}
        transport = SocketQuorumTransport(keepers.keepers)
        register = KeeperRegister(KeeperSet(1, stale), transport)
        assert (await register.change("g", Registered(), group())).version == 1
        await transport.close()

    run_with_three_keepers(tmp_path, scene)


def test_keepers_serve_tls(tmp_path: Path) -> None:
    own, client = certificates(tmp_path)

    async def scene() -> None:
        service = await KeeperService.start(KeeperSpec(1, "c", str(tmp_path / "k"), "127.0.0.1", tls=own))
        known = KeeperSet(1, {1: KeeperMember(service.address, "made-1")})
        await service.found(KeeperRecord("c", 1, "made-1", known))
        for tls, answers in ((client_context(client), True), (None, False)):
            transport = SocketQuorumTransport(tls=tls)
            answered = await transport.ask(known, calls_to_all(known, Inquire("g")), lambda each: len(each) == 1)
            assert bool(answered) == answers
            await transport.close()
        await service.stop()

    asyncio.run(scene())
