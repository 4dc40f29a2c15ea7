"""Test an operator's elections and RocketMQ's controller requests over a name server's socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.errors import BrokerGroupNotFound, BrokerUnavailable, ElectionFailed, InvalidInput, ProtocolError
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.controller_commands import elect_command, read_group_master, replica_info_command
from raymq.actors.wire.commands.keeper_commands import KEEPERS
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.controller_headers import CleanBrokerData
from tests.unit.actors.coordinator.test_coordinator_service import GROUP, Group, running_group


class OperatorClient:
    """Send requests to a name server that knows the keepers' addresses."""

    def __init__(self, server: NameServerService, pool: ConnectionPool) -> None:
        self.server, self._pool = server, pool

    async def ask(self, command: Command) -> Command:
        return await self._pool.request(self.server.address, command, 15.0)

    async def elect(self, replica: int | None = None, *, unclean: bool = False) -> tuple[int | None, int]:
        reply = read_group_master(await self.ask(elect_command(GROUP, replica, unclean=unclean)))
        return reply.master, reply.epoch

    async def json(self, code: RequestCode, body: Any) -> Any:
        return json.loads(bytes((await self.ask(Command(code, body=json.dumps(body).encode()))).body))


def files_containing(folder: Path, name: str) -> list[Path]:
    """Return the files that contain `name`."""
    return [each for each in folder.rglob("*") if each.is_file() and name in each.read_text()]


@contextlib.asynccontextmanager
async def running_cluster(folder: Path, *, coordinated: bool = True) -> AsyncIterator[tuple[Group, OperatorClient]]:
    """Run three replicas in sync, of which replica 1 is master."""
    server = await NameServerService.start(NameServerSpec(0, str(folder), "127.0.0.1", 0))
    pool = ConnectionPool()
    try:
        async with running_group(folder) as group:
            addresses = {str(number): each.address for number, each in group.keepers.keepers.members.items()}
            server.publish(KEEPERS, addresses)
            coordinator = await group.coordinate()
            for replica in group.replicas.values():
                await replica.start()
            await group.until(lambda: group.master is not None)
            await group.replicas[1].take_in(2, 3)
            await group.until(lambda: all(each.epoch == 1 for each in group.replicas.values()))
            if not coordinated:
                await coordinator.stop()
                group.coordinators.clear()
            yield group, OperatorClient(server, pool)
    finally:
        await pool.close()
        await server.stop()


@pytest.mark.parametrize("coordinated", [True, False])
async def test_elected_replica_becomes_master_without_lease_wait(tmp_path: Path, coordinated: bool) -> None:
    async with running_cluster(tmp_path, coordinated=coordinated) as (group, operator):
        assert await operator.elect(2) == (2, 2)
        await group.until(lambda: group.master is group.replicas[2])
        assert (await group.state()).in_sync == {1, 2, 3}, "all have the same"
        assert await operator.elect(2) == (2, 2), "it is master already"


async def test_electing_lagging_replica_fails_and_keeps_master(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (group, operator):
        group.replicas[1].end = 50
        with pytest.raises(ElectionFailed, match="replica 3 has the log up to 0, replica 1 up to 50"):
            await operator.elect(3)
        await group.until(lambda: group.master is group.replicas[1])
        group.replicas[3].end = 50
        await group.replicas[1].take_in(2, 3)
        await group.until(lambda: group.replicas[3].epoch == 2)
        assert (await operator.elect(3))[0] == 3


async def test_electing_unavailable_replica_fails_without_effect(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (group, operator):
        await group.replicas[1].take_in(2)
        with pytest.raises(ElectionFailed, match="replica 3 is not in sync"):
            await operator.elect(3)
        await group.replicas[2].kill()
        with pytest.raises(ElectionFailed, match="replica 2 does not answer"):
            await operator.elect(2)
        with pytest.raises(InvalidInput):
            await operator.elect(7)
        with pytest.raises(BrokerGroupNotFound) as unknown:
            await operator.ask(elect_command("broker-z", None, unclean=False))
        assert unknown.value.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST.name
        assert files_containing(tmp_path, GROUP), "keepers' files"
        assert not files_containing(tmp_path, "broker-z"), "whoever asks for made-up ones would fill the register"
        assert await operator.elect() == (1, 1)
        assert group.master is group.replicas[1]


async def test_unclean_election_requires_operator_flag(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (group, operator):
        await group.replicas[1].take_in(1)
        await group.replicas[1].kill()
        with pytest.raises(ElectionFailed, match=r"no in-sync replica \[1\]"):
            await operator.elect()
        reply = read_group_master(await operator.ask(elect_command(GROUP, None, unclean=True)))
        assert reply.master in {2, 3}
        assert "lost" in reply.warning
        state = await group.state()
        assert state.loss_epoch == state.epoch, "its master tells readers"
        await group.until(lambda: group.master is not None)


async def test_controller_queries_answer_from_register(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (group, operator):
        info = await operator.ask(replica_info_command(GROUP))
        assert info.fields["masterBrokerId"] == "1"
        assert info.fields["masterAddress"] == group.replicas[1].address
        assert json.loads(bytes(info.body))["syncStateSet"] == [1, 2, 3]
        meta = await operator.ask(Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
        assert meta.fields["controllerLeaderAddress"] == operator.server.address
        await group.replicas[3].kill()
        table = await operator.json(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, [GROUP, "unknown"])
        assert table["replicasInfoTable"].keys() == {GROUP}
        reply = table["replicasInfoTable"][GROUP]
        assert (reply["masterBrokerId"], reply["masterEpoch"]) == (1, 1)
        assert [(each["brokerId"], each["alive"]) for each in reply["inSyncReplicas"]] == [
            (1, True),
            (2, True),
            (3, False),
        ]
        assert reply["notInSyncReplicas"] == []
        for body in ({"a": 1}, [1], "x", ["a"] * 2_000):
            with pytest.raises(InvalidInput):
                await operator.json(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body)


async def test_clean_broker_data_removes_dead_replicas(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (group, operator):
        clean = CleanBrokerData(GROUP, broker_controller_ids_to_clean="3")
        with pytest.raises(InvalidInput, match="not in sync"):
            await operator.ask(clean.command())
        await group.replicas[1].take_in(2)
        with pytest.raises(InvalidInput, match="do not run"):
            await operator.ask(clean.command())
        await group.replicas[3].kill()
        await operator.ask(clean.command())
        assert (await group.state()).replicas.keys() == {1, 2}
        for wrong in ("", "x", "9", "1"):
            with pytest.raises(InvalidInput):
                await operator.ask(CleanBrokerData(GROUP, broker_controller_ids_to_clean=wrong).command())


async def test_controller_requests_unsupported_without_keepers(tmp_path: Path) -> None:
    server = await NameServerService.start(NameServerSpec(0, str(tmp_path), "127.0.0.1", 0))
    pool = ConnectionPool()
    try:
        for command in (elect_command(GROUP, 1, unclean=False), replica_info_command(GROUP)):
            with pytest.raises(ProtocolError) as refused:
                await pool.request(server.address, command, 5.0)
            assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED.name
        server.publish(KEEPERS, {"1": "127.0.0.1:1"})
        with pytest.raises(BrokerUnavailable, match="keepers"):
            await pool.request(server.address, replica_info_command(GROUP), 5.0)
    finally:
        await pool.close()
        await server.stop()


async def test_stale_register_requires_unclean_election(tmp_path: Path) -> None:
    """Guard against silently electing a replica that an outdated register lists in sync."""
    async with running_cluster(tmp_path, coordinated=False) as (group, operator):
        await group.replicas[1].kill()
        group.replicas[2].fenced = 5
        group.replicas[2].end = 100
        with pytest.raises(ElectionFailed, match="the register is older"):
            await operator.elect()
        reply = read_group_master(await operator.ask(elect_command(GROUP, None, unclean=True)))
        assert (reply.master, reply.epoch) == (2, 5)
        assert "the register was older" in reply.warning
        state = await group.state()
        assert (state.in_sync, state.loss_epoch) == ({2}, 5), "replica 1 may have had what readers have seen"
