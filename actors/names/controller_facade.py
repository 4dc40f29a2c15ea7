"""Answer RocketMQ's controller requests from the register, and run manual elections.

The facade keeps only connections. The location of the register is in the name server's entries, and all other state is
in the register.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import replace

from raymq.actors.coordinator.manual_failover import elect_manually
from raymq.actors.coordinator.replica_client import ReplicaClient
from raymq.actors.errors import BrokerUnavailable, ElectionFailed, InvalidInput, broker_not_found
from raymq.actors.keeper.errors import RegisterConflict, RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.keeper_discovery import find_keepers
from raymq.actors.keeper.serving.register_location import OpenRegister, location_from_entries, open_register
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.controller_headers import CleanBrokerData, ElectMaster, GetReplicaInfo
from raymq.actors.wire.tls import ReloadingContext
from raymq.storage.clock import boottime

#: RocketMQ's tools time out after 5 s.
_ELECT_SECONDS: Final = 8.0
_CLEAN_TRIES: Final = 5
_Names = Annotated[list[str], Meta(max_length=1_000)]
_MAX_BODY_BYTES: Final = 1 << 20


class ControllerFacade:
    """RocketMQ's controller requests, answered by a name server.

    Used on the name server's event loop. Call `close` at the end.
    """

    def __init__(
        self, address: str, register_at: Callable[[], Mapping[str, str]], tls: ReloadingContext | None = None
    ) -> None:
        """Create the facade without a connection.

        `address`: the name server's own address.

        `register_at`: returns the current entries with the location of the register: the keepers' addresses by number,
        or one entry "etcd".
        """
        self._address = address
        self._register_at = register_at
        self._tls = tls
        self._replica_client = ReplicaClient(tls)
        self._opened: OpenRegister | None = None
        #: The entries that the register was opened with.
        self._known: dict[str, str] = {}
        self._finding = asyncio.Lock()
        self._served: dict[RequestCode, Callable[[Command], Awaitable[Command]]] = {
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_states,
            RequestCode.CLEAN_BROKER_DATA: self._clean,
        }

    async def answer(self, request: Command) -> Command:
        """Return the answer to a request with one of `controller_handlers.CODES`.

        Raise BrokerUnavailable if the register cannot be reached.
        """
        try:
            return await self._served[RequestCode(request.code)](request)
        except RegisterError as error:
            raise BrokerUnavailable("keepers", str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._replica_client.close()
        if self._opened is not None:
            await self._opened.close()

    async def _use(self) -> Register:
        async with self._finding:
            entries = dict(self._register_at())
            if self._opened is None or entries != self._known:
                where = await self._look(entries)
                if self._opened is not None:
                    await self._opened.close()
                self._opened, self._known = open_register(where, self._tls), entries
            return self._opened.register

    async def _look(self, entries: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the location of the register; raise BrokerUnavailable if no keeper reports it."""
        if location := location_from_entries(entries):
            return location
        addresses = {int(number): address for number, address in entries.items() if number.isdecimal()}
        found = await find_keepers(addresses, self._tls)
        if found is None:
            raise BrokerUnavailable("keepers", f"no keeper answers: {', '.join(entries.values())}")
        return found.to_json()

    async def _state(self, group: str) -> tuple[Register, Registered, GroupState]:
        register = await self._use()
        now = await register.read(group)
        if not isinstance(now.value, GroupState) or not now.value.replicas:
            raise broker_not_found(group, "the register")
        return register, now, now.value

    async def _elect(self, request: Command) -> Command:
        header = ElectMaster.read(request)
        designated = header.broker_id if header.designate_elect or header.broker_id > 0 else None
        election = await elect_manually(
            await self._use(),
            self._replica_client,
            header.broker_name,
            boottime,
            designated=designated,
            unclean=header.raymq_unclean,
            seconds=_ELECT_SECONDS,
        )
        fields = _master_fields(election.state) | {"raymqChanged": election.changed, "raymqWarning": election.warning}
        addresses = {str(number): each.address for number, each in election.state.replicas.items()}
        group = {"cluster": header.cluster_name, "brokerName": header.broker_name, "brokerAddrs": addresses}
        return _answer(request, fields, {"brokerMemberGroup": group, "syncStateSet": sorted(election.state.in_sync)})

    async def _replica_info(self, request: Command) -> Command:
        _, _, state = await self._state(GetReplicaInfo.read(request).broker_name)
        body = {"syncStateSet": sorted(state.in_sync), "syncStateSetEpoch": state.set_epoch}
        return _answer(request, _master_fields(state), body)

    async def _metadata(self, request: Command) -> Command:
        fields = {
            "group": "raymq",
            "controllerLeaderId": "register",
            "controllerLeaderAddress": self._address,
            "isLeader": True,
            "peers": f"register:{self._address}",
        }
        return request.response(ResponseCode.SUCCESS, fields)

    async def _sync_states(self, request: Command) -> Command:
        names = _names(request)
        register = await self._use()
        table = {}
        for name in names:
            value = (await register.read(name)).value
            if isinstance(value, GroupState) and value.replicas:
                table[name] = await self._replicas_of(name, value)
        return _answer(request, {}, {"replicasInfoTable": table})

    async def _replicas_of(self, name: str, state: GroupState) -> dict[str, Any]:
        statuses = await self._replica_client.status(state.replicas)
        replicas = {
            number: {
                "brokerName": name,
                "brokerId": number,
                "brokerAddress": record.address,
                "alive": number in statuses and statuses[number].nonce == record.nonce,
            }
            for number, record in state.replicas.items()
        }
        fields = _master_fields(state)
        return {
            "masterBrokerId": fields["masterBrokerId"],
            "masterAddress": fields["masterAddress"],
            "masterEpoch": state.epoch,
            "syncStateSetEpoch": state.set_epoch,
            "inSyncReplicas": [each for number, each in replicas.items() if number in state.in_sync],
            "notInSyncReplicas": [each for number, each in replicas.items() if number not in state.in_sync],
        }

    async def _clean(self, request: Command) -> Command:
        header = CleanBrokerData.read(request)
        numbers = [each for each in header.broker_controller_ids_to_clean.split(";") if each.strip()]
        if not numbers or not all(each.strip().isdecimal() for each in numbers):
            raise InvalidInput("brokerControllerIdsToClean", 'the numbers of replicas, joined by ";"', numbers)
        for _ in range(_CLEAN_TRIES):
            register, now, state = await self._state(header.broker_name)
            after = state
            alive = {} if header.is_clean_living_broker else await self._replica_client.status(state.replicas)
            for number in map(int, numbers):
                after = _without(after, number, is_alive=number in alive)
            try:
                await register.change(header.broker_name, now, replace(after, set_epoch=state.set_epoch))
            except RegisterConflict:
                continue
            return request.response(ResponseCode.SUCCESS)
        raise ElectionFailed(f"{header.broker_name}: its state keeps changing")


def _without(state: GroupState, number: int, *, is_alive: bool) -> GroupState:
    if number not in state.replicas:
        raise InvalidInput("brokerControllerIdsToClean", f"some of {sorted(state.replicas)}", number)
    if number == state.master or number in state.in_sync:
        raise InvalidInput("brokerControllerIdsToClean", "replicas that are not in sync", number)
    if is_alive:
        raise InvalidInput("brokerControllerIdsToClean", "replicas that do not run, or isCleanLivingBroker", number)
    return state.without_replica(number)


def _names(request: Command) -> list[str]:
    return json_body.decode(request.body, _Names, max_bytes=_MAX_BODY_BYTES)


def _master_fields(state: GroupState) -> dict[str, Any]:
    """Return the fields of the master.

    Like RocketMQ's, the id and the address are None without a master.
    """
    address = None if state.master is None else state.replicas[state.master].address
    return {
        "masterBrokerId": state.master,
        "masterAddress": address,
        "masterEpoch": state.epoch,
        "syncStateSetEpoch": state.set_epoch,
    }


def _answer(request: Command, fields: Mapping[str, Any], body: Mapping[str, Any]) -> Command:
    answer = json_body.answer(request, body)
    return request.response(ResponseCode.SUCCESS, dict(fields), body=answer.body)
