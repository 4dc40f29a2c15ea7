"""Where a cluster's register is, as its actors are told: on keepers, or on an etcd. And the way to it.

Keepers are told as `KeeperSet.to_json` says, an etcd as

    {"etcd": {"endpoints": ["http://10.0.0.1:2379", ...], "prefix": "/raymq/<cluster>", "tls": null, "cluster": "5f.."}}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.socket_door import SocketKeeperDoor
from raymq.actors.protocol import Etcd, Tls
from raymq.actors.wire.tls import RenewedContext, client_context

if TYPE_CHECKING:
    from raymq.actors.keeper.etcd.etcd_register import EtcdRegister

_ETCD: Final = "etcd"


@dataclass(frozen=True, slots=True)
class OpenRegister:
    """A register, and what ends the way to it."""

    register: Register
    close: Callable[[], Awaitable[None]]


def etcd_location(etcd: Etcd, cluster: str) -> dict[str, Any]:
    """What actors are told where the register is on an etcd."""
    tls = None if etcd.tls is None else dataclasses.asdict(etcd.tls)
    return {_ETCD: {"endpoints": list(etcd.endpoints), "prefix": f"/raymq/{cluster}", "tls": tls}}


def founded_location(told: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """The same, once it is the register of that cluster (`is_of`): where it is not, nothing is read there any more."""
    return {_ETCD: {**told[_ETCD], "cluster": cluster}}


def published(told: Mapping[str, Any]) -> dict[str, str]:
    """The entries that name servers are given of it, beside those of keepers: none, or one."""
    return {_ETCD: json.dumps(told[_ETCD])} if _ETCD in told else {}


def published_location(entries: Mapping[str, str]) -> dict[str, Any] | None:
    """What was `published`; None: nothing."""
    return {_ETCD: json.loads(entries[_ETCD])} if _ETCD in entries else None


def keepers_at(told: Mapping[str, Any] | None) -> KeeperSet:
    """The keepers that it is on; none where it is on an etcd, or there is no register."""
    return KeeperSet() if told is None or _ETCD in told else KeeperSet.from_json(told)


def open_register(told: Mapping[str, Any], tls: RenewedContext | None) -> OpenRegister:
    """The register there, for one event loop, on which this is called.

    Args:
        tls: of the cluster's own sockets, which keepers have.

    Raises:
        InvalidInput: what is told is of another form, or a library or a file that etcd needs is missing.
    """
    if _ETCD in told:
        return _open_etcd(told[_ETCD])
    keepers = KeeperSet.from_json(told)
    door = SocketKeeperDoor(keepers, tls=tls)
    return OpenRegister(KeeperRegister(keepers, door), door.close)


async def is_of(told: Mapping[str, Any], cluster: str, *, is_new: bool) -> bool:
    """As `EtcdRegister.is_of`, of the etcd there; InvalidInput as `open_register`."""
    register = _etcd_register(told[_ETCD])
    try:
        return await register.is_of(cluster, is_new=is_new)
    finally:
        register.close()


def _open_etcd(told: Mapping[str, Any]) -> OpenRegister:
    register = _etcd_register(told)

    async def close() -> None:
        register.close()

    return OpenRegister(register, close)


def _etcd_register(told: Mapping[str, Any]) -> EtcdRegister:
    try:
        from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
    except ImportError as error:
        raise InvalidInput("etcd_endpoints", "what raymq's extra `etcd` installs", str(error)) from error
    tls = None if told["tls"] is None else client_context(Tls(**told["tls"]))
    return EtcdRegister(told["endpoints"], told["prefix"], None if tls is None else tls.now, told.get("cluster"))
