"""Create the keepers of a cluster, find them again, and restore lost ones.

The keepers are created once and found again by every later start; a keeper that has lost its disk is added again. A
cluster whose groups have one replica has no keepers, because no other replica could be master. With more replicas there
are 3 keepers on the first hosts, 5 from five hosts on. On one or two hosts there is one: of two keepers both would be
needed, and of three on two hosts the loss of one host would take two.

The set is recorded beside the brokers' layout before it is created: an aborted start is repeated in the same way, and
once all keepers have begun the set is never created again.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from raymq.actors import actor_calls
from raymq.actors.actor_options import make_keeper
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import PATIENCE_SECONDS
from raymq.actors.keeper.acceptor import KeeperState
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.actors.naming import keeper_name
from raymq.actors.protocol import KeeperSpec, Tls
from raymq.actors.wire.commands.keeper_commands import KeeperStatus
from raymq.actors.wire.tls import client_context
from raymq.cluster.host_files import locate_actor
from raymq.storage.files import json_file

LAYOUT_FILE: Final = "raymq-keepers.json"
_CALL_SECONDS: Final = 30.0
#: As for a name server, because its process must start.
_START_SECONDS: Final = 120.0
#: The seconds to add one keeper again: two changes of the set, each of which waits for leases to expire.
_TAKE_IN_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperLayout:
    """The recorded keepers of a cluster.

    Attributes:
        resources: the machine of each keeper, by its number.
        incarnations: the incarnations with which the keepers are, or will be, created.
        is_registered: whether all of them have begun.
        known: the newest set that a start has found, with the addresses at that time; its number is 0 before the set is
            created.
    """

    resources: Mapping[int, str]
    incarnations: Mapping[int, str]
    is_registered: bool = False
    known: KeeperSet = field(default_factory=KeeperSet)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "resources": {str(number): each for number, each in self.resources.items()},
            "incarnations": {str(number): each for number, each in self.incarnations.items()},
            "founded": self.is_registered,
            "known": self.known.to_json() if self.known.number else None,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> KeeperLayout | None:
        """Return the record that `to_json` encoded, None for an empty object.

        Raise ValueError or a similar error if the values have another form.
        """
        if not raw:
            return None
        known = raw["known"]
        return cls(
            {int(number): str(each) for number, each in raw["resources"].items()},
            {int(number): str(each) for number, each in raw["incarnations"].items()},
            bool(raw["founded"]),
            KeeperSet() if known is None else KeeperSet.from_json(known),
        )

    @classmethod
    def initial(cls, resources: Sequence[str]) -> KeeperLayout:
        """Return the record for a cluster on these machines that has no keepers yet."""
        placed = dict(enumerate(resources[: keeper_count(len(resources))], 1))
        return cls(placed, {number: uuid.uuid4().hex for number in placed})


def keeper_count(hosts: int) -> int:
    """Return the number of keepers of a cluster with so many hosts."""
    return 5 if hosts >= 5 else 3 if hosts >= 3 else 1


def make(
    namespace: str,
    directory: Path,
    hosts: Sequence[tuple[str, str]],
    tls: Tls | None,
    seen: Mapping[str, Collection[str]],
) -> KeeperSet:
    """Ensure that every keeper exists, runs and votes; return the set.

    The set has the current addresses.

    Args:
        seen: the actors with files on each machine, for the machines that were queried (`host_files.list_host_files`).

    Raises:
        BrokerUnavailable: a keeper's machine is missing, or the register is lost.
        RayMQError: a keeper cannot start.
    """
    file = directory / LAYOUT_FILE
    by_resource = dict(hosts)
    layout = json_file.load_as(file, KeeperLayout.from_json) or KeeperLayout.initial([each for each, _ in hosts])
    if len(layout.resources) == 1 and len(hosts) == 1:
        layout = dataclasses.replace(layout, resources=dict.fromkeys(layout.resources, hosts[0][0]))
    moved = {number: locate_actor(keeper_name(number), each, seen) or each for number, each in layout.resources.items()}
    layout = dataclasses.replace(layout, resources=moved)
    missing = {number: each for number, each in layout.resources.items() if each not in by_resource}
    if missing and (not layout.is_registered or 2 * len(missing) >= len(layout.resources)):
        raise BrokerUnavailable(
            "keepers",
            f"their machines are not part of this Ray cluster: {', '.join(missing.values())}",
            remedy=f"start Ray there; if a machine lost its disk and has another name, write that into {file}",
        )
    _save(file, layout)
    cluster_keepers = _KeeperStarter(namespace, directory, by_resource, tls, layout)
    return cluster_keepers.create_set(file) if not layout.is_registered else cluster_keepers.rejoin_set(file)


def known(directory: Path) -> KeeperSet:
    """Return the set of keepers that the last start found.

    Raise BrokerUnavailable if no start has created keepers.
    """
    layout = json_file.load_as(directory / LAYOUT_FILE, KeeperLayout.from_json)
    if layout is None or not layout.known.number:
        raise BrokerUnavailable("keepers", f"no start has created any, according to the files in {directory}")
    return layout.known


class _KeeperStarter:
    """The keepers of one start, by their numbers."""

    def __init__(
        self, namespace: str, directory: Path, by_resource: Mapping[str, str], tls: Tls | None, layout: KeeperLayout
    ) -> None:
        self._cluster = namespace
        self._tls = tls
        self._layout = layout
        self._handles = {
            number: make_keeper(
                KeeperSpec(number, namespace, str(directory), by_resource[resource], tls=tls), namespace, resource
            )
            for number, resource in layout.resources.items()
            if resource in by_resource
        }
        self._addresses: dict[int, str] = {
            number: actor_calls.call(
                keeper_name(number), handle, "address", _START_SECONDS, PATIENCE_SECONDS, timeout=_START_SECONDS + 5.0
            )
            for number, handle in self._handles.items()
        }

    def create_set(self, file: Path) -> KeeperSet:
        """Create the set, which requires all keepers."""
        incarnations = self._layout.incarnations
        members = {number: KeeperMember(self._addresses[number], each) for number, each in incarnations.items()}
        known = KeeperSet(1, members)
        for number in members:
            self._call(number, "found", KeeperRecord(self._cluster, number, incarnations[number], known))
        _save(file, dataclasses.replace(self._layout, is_registered=True, known=known))
        return known

    def rejoin_set(self, file: Path) -> KeeperSet:
        """Find the existing set, and add keepers again that have lost their files."""
        answers = [self._call(number, "keepers") for number in self._handles]
        known: KeeperSet = max([self._layout.known, *answers], key=lambda each: each.number)
        for number in self._handles:
            status: KeeperStatus = self._call(number, "status")
            member = known.members.get(number)
            if member is not None and member.incarnation == status.incarnation:
                continue
            if status.state != KeeperState.EMPTY.value and member is not None:
                _log.warning("keeper %d has no vote: %s", number, status.state)
                continue
            known = self._readmit(number, known)
        known = self._with_current_addresses(known)
        _save(file, dataclasses.replace(self._layout, known=known))
        return known

    def _readmit(self, number: int, known: KeeperSet) -> KeeperSet:
        """Let the other keepers' majority add an empty keeper again; return the new set."""
        if known.members.keys() <= {number}:
            raise BrokerUnavailable(
                "keepers",
                f"the register is lost: the file of its only keeper ({keeper_name(number)}) is gone",
                remedy=f"put the newest copy of it back; if there is none, removing {LAYOUT_FILE} creates new keepers",
            )
        incarnation = uuid.uuid4().hex
        loop = EventLoopThread("keepers")

        async def change() -> KeeperSet:
            tls = None if self._tls is None else client_context(self._tls)
            door = SocketQuorumTransport(self._with_current_addresses(known), tls=tls)
            register = KeeperRegister(known, door)
            try:
                after = await register.finish_change()
                if number in after.members:
                    await register.remove_keeper(number)
                record = KeeperRecord(self._cluster, number, incarnation)
                name, handle = keeper_name(number), self._handles[number]
                await actor_calls.call_async(name, handle, "reset", record, timeout=_CALL_SECONDS)
                return await register.add_keeper(number, KeeperMember(self._addresses[number], incarnation))
            finally:
                await door.close()

        try:
            return loop.run(change(), _TAKE_IN_SECONDS)
        except (RegisterError, TimeoutError) as error:
            _log.warning("keeper %d has lost its file, and cannot rejoin now: %s", number, error)
            return known
        finally:
            loop.stop()

    def _with_current_addresses(self, known: KeeperSet) -> KeeperSet:
        """Return the set with the current addresses of its keepers."""

        def moved(members: Mapping[int, KeeperMember]) -> dict[int, KeeperMember]:
            return {
                number: replace(member, address=self._addresses.get(number, member.address))
                for number, member in members.items()
            }

        return replace(
            known, members=moved(known.members), before=None if known.before is None else moved(known.before)
        )

    def _call(self, number: int, method: str, *arguments: Any) -> Any:
        return actor_calls.call(keeper_name(number), self._handles[number], method, *arguments, timeout=_CALL_SECONDS)


def _save(file: Path, layout: KeeperLayout) -> None:
    json_file.save(file, layout.to_json(), KeeperLayout.from_json)
