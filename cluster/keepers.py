"""The keepers of a cluster: founded once, found again by every later start, and taken in again where one has lost its
disk.

A cluster whose groups have one copy has none: nobody else could be master. With more copies there are 3 on the first
hosts, 5 from five hosts on. On one or two hosts there is one: of two keepers both are needed, and of three on two hosts
the loss of one host takes two.

What was founded is written down beside the brokers' layout before anything is founded: a start that is broken off is
repeated alike, and once all have begun nothing is ever founded again.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from raymq.actors import handles
from raymq.actors.actor_options import make_keeper
from raymq.actors.actor_startup import PATIENCE_SECONDS
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.acceptor import KeeperState
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.serving.socket_door import SocketKeeperDoor
from raymq.actors.naming import keeper_name
from raymq.actors.protocol import KeeperSpec, Tls
from raymq.actors.wire.commands.keeper import KeeperStatus
from raymq.actors.wire.tls import client_context
from raymq.cluster.host_files import located
from raymq.storage.files import json_file

LAYOUT_FILE: Final = "raymq-keepers.json"
_CALL_SECONDS: Final = 30.0
#: As a name server: its process has to start.
_START_SECONDS: Final = 120.0
#: What taking one keeper in may take: two changes of the set, each with the wait for leases to end.
_TAKE_IN_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperLayout:
    """What a start has written down.

    Attributes:
        resources: on which machine each keeper is, by its number.
        incarnations: those that they are, or were to be, founded with.
        founded: whether all of them have begun.
        known: the newest set that a start has met, with the addresses of then; of number 0 before they were founded.
    """

    resources: Mapping[int, str]
    incarnations: Mapping[int, str]
    founded: bool = False
    known: KeeperSet = field(default_factory=KeeperSet)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "resources": {str(number): each for number, each in self.resources.items()},
            "incarnations": {str(number): each for number, each in self.incarnations.items()},
            "founded": self.founded,
            "known": self.known.to_json() if self.known.number else None,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> KeeperLayout | None:
        """What `to_json` made; None of an empty object. ValueError and the like if it is of another form."""
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
    def planned(cls, resources: Sequence[str]) -> KeeperLayout:
        """For a cluster on these machines that has no keepers yet."""
        placed = dict(enumerate(resources[: how_many(len(resources))], 1))
        return cls(placed, {number: uuid.uuid4().hex for number in placed})


def how_many(hosts: int) -> int:
    """How many keepers a cluster on so many hosts has."""
    return 5 if hosts >= 5 else 3 if hosts >= 3 else 1


def make(
    namespace: str,
    directory: Path,
    hosts: Sequence[tuple[str, str]],
    tls: Tls | None,
    seen: Mapping[str, Collection[str]],
) -> KeeperSet:
    """See to it that every keeper is there, up and has its voice; the set, with the addresses of now.

    Args:
        seen: whose files each machine has, as far as machines were asked (`host_files.ask`).

    Raises:
        BrokerUnavailable: a keeper's machine is not there, or the register is lost.
        RayMQError: what keeps a keeper from coming up.
    """
    file = directory / LAYOUT_FILE
    by_resource = dict(hosts)
    layout = json_file.load_as(file, KeeperLayout.from_json) or KeeperLayout.planned([each for each, _ in hosts])
    if len(layout.resources) == 1 and len(hosts) == 1:
        layout = dataclasses.replace(layout, resources=dict.fromkeys(layout.resources, hosts[0][0]))
    moved = {number: located(keeper_name(number), each, seen) or each for number, each in layout.resources.items()}
    layout = dataclasses.replace(layout, resources=moved)
    missing = {number: each for number, each in layout.resources.items() if each not in by_resource}
    if missing and (not layout.founded or 2 * len(missing) >= len(layout.resources)):
        raise BrokerUnavailable(
            "keepers",
            f"their machines are not part of this Ray cluster: {', '.join(missing.values())}",
            remedy=f"start Ray there; if a machine lost its disk and has another name, write that into {file}",
        )
    _save(file, layout)
    cluster_keepers = _Keepers(namespace, directory, by_resource, tls, layout)
    return cluster_keepers.begin(file) if not layout.founded else cluster_keepers.go_on(file)


def known(directory: Path) -> KeeperSet:
    """The set of keepers as the last start has met it; BrokerUnavailable: none has founded any."""
    layout = json_file.load_as(directory / LAYOUT_FILE, KeeperLayout.from_json)
    if layout is None or not layout.known.number:
        raise BrokerUnavailable("keepers", f"no start has founded any, by what is written down in {directory}")
    return layout.known


class _Keepers:
    """Those of one start, by their numbers."""

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
            number: handles.call(
                keeper_name(number), handle, "address", _START_SECONDS, PATIENCE_SECONDS, timeout=_START_SECONDS + 5.0
            )
            for number, handle in self._handles.items()
        }

    def begin(self, file: Path) -> KeeperSet:
        """Found the set; all of them are needed for that."""
        incarnations = self._layout.incarnations
        members = {number: KeeperMember(self._addresses[number], each) for number, each in incarnations.items()}
        known = KeeperSet(1, members)
        for number in members:
            self._call(number, "found", KeeperRecord(self._cluster, number, incarnations[number], known))
        _save(file, dataclasses.replace(self._layout, founded=True, known=known))
        return known

    def go_on(self, file: Path) -> KeeperSet:
        """Find the set that is there, and take those in again that have lost their files."""
        told = [self._call(number, "keepers") for number in self._handles]
        known: KeeperSet = max([self._layout.known, *told], key=lambda each: each.number)
        for number in self._handles:
            status: KeeperStatus = self._call(number, "status")
            member = known.members.get(number)
            if member is not None and member.incarnation == status.incarnation:
                continue
            if status.state != KeeperState.EMPTY.value and member is not None:
                _log.warning("keeper %d has no voice: %s", number, status.state)
                continue
            known = self._take_in(number, known)
        known = self._here(known)
        _save(file, dataclasses.replace(self._layout, known=known))
        return known

    def _take_in(self, number: int, known: KeeperSet) -> KeeperSet:
        """A keeper that knows nothing is taken in by the majority of the others; the set with it."""
        if known.members.keys() <= {number}:
            raise BrokerUnavailable(
                "keepers",
                f"the register is lost: the file of its only keeper ({keeper_name(number)}) is gone",
                remedy=f"put the newest copy of it back; if there is none, removing {LAYOUT_FILE} founds keepers anew",
            )
        incarnation = uuid.uuid4().hex
        loop = EventLoopThread("keepers")

        async def change() -> KeeperSet:
            tls = None if self._tls is None else client_context(self._tls)
            door = SocketKeeperDoor(self._here(known), tls=tls)
            register = KeeperRegister(known, door)
            try:
                after = await register.finish_change()
                if number in after.members:
                    await register.remove_keeper(number)
                record = KeeperRecord(self._cluster, number, incarnation)
                name, handle = keeper_name(number), self._handles[number]
                await handles.acall(name, handle, "begin_anew", record, timeout=_CALL_SECONDS)
                return await register.add_keeper(number, KeeperMember(self._addresses[number], incarnation))
            finally:
                await door.close()

        try:
            return loop.run(change(), _TAKE_IN_SECONDS)
        except (RegisterError, TimeoutError) as error:
            _log.warning("keeper %d has lost its file, and cannot be taken in now: %s", number, error)
            return known
        finally:
            loop.stop()

    def _here(self, known: KeeperSet) -> KeeperSet:
        """The set with the addresses of now."""

        def moved(members: Mapping[int, KeeperMember]) -> dict[int, KeeperMember]:
            return {
                number: dataclasses.replace(member, address=self._addresses.get(number, member.address))
                for number, member in members.items()
            }

        return dataclasses.replace(
            known, members=moved(known.members), before=None if known.before is None else moved(known.before)
        )

    def _call(self, number: int, method: str, *arguments: Any) -> Any:
        return handles.call(keeper_name(number), self._handles[number], method, *arguments, timeout=_CALL_SECONDS)


def _save(file: Path, layout: KeeperLayout) -> None:
    json_file.save(file, layout.to_json(), KeeperLayout.from_json)
