"""Locate and open a cluster's register, on keepers or on an etcd.

Actors receive the location as JSON values. For keepers it is `KeeperSet.to_json`, for an etcd

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
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.actors.protocol import Etcd, Tls
from raymq.actors.wire.tls import ReloadingContext, client_context

if TYPE_CHECKING:
    from raymq.actors.keeper.etcd.etcd_register import EtcdRegister

_ETCD: Final = "etcd"


@dataclass(frozen=True, slots=True)
class OpenRegister:
    """A register and the function that closes its connections."""

    register: Register
    close: Callable[[], Awaitable[None]]


def etcd_location(etcd: Etcd, cluster: str) -> dict[str, Any]:
    """Return the location of a register on an etcd, as actors receive it."""
    tls = None if etcd.tls is None else dataclasses.asdict(etcd.tls)
    return {_ETCD: {"endpoints": list(etcd.endpoints), "prefix": f"/raymq/{cluster}", "tls": tls}}


def claimed_location(location: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the location with the cluster that the register belongs to.

    A register that is opened from it serves no call if it belongs to another cluster (`claim_for_cluster`).
    """
    return {_ETCD: {**location[_ETCD], "cluster": cluster}}


def location_entries(location: Mapping[str, Any]) -> dict[str, str]:
    """Return the configuration entry of a register on etcd, for name servers.

    The result is empty for a register on keepers, which have entries of their own.
    """
    return {_ETCD: json.dumps(location[_ETCD])} if _ETCD in location else {}


def location_from_entries(entries: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the location that `location_entries` encoded; None if there is no entry."""
    return {_ETCD: json.loads(entries[_ETCD])} if _ETCD in entries else None


def keepers_at(location: Mapping[str, Any] | None) -> KeeperSet:
    """Return the keepers of the register.

    The set is empty if the register is on an etcd, or if there is no register.
    """
    return KeeperSet() if location is None or _ETCD in location else KeeperSet.from_json(location)


def open_register(location: Mapping[str, Any], tls: ReloadingContext | None) -> OpenRegister:
    """Open the register there, for the running event loop.

    Args:
        tls: the context of the cluster's own sockets, which the keepers use.

    Raises:
        InvalidInput: the location is malformed, or a library or a file that etcd needs is missing.
    """
    if _ETCD in location:
        return _open_etcd(location[_ETCD])
    keepers = KeeperSet.from_json(location)
    door = SocketQuorumTransport(keepers, tls=tls)
    return OpenRegister(KeeperRegister(keepers, door), door.close)


async def claim_for_cluster(location: Mapping[str, Any], cluster: str, *, is_new: bool) -> bool:
    """Claim the register on that etcd, as `EtcdRegister.claim_for_cluster` describes.

    Raise InvalidInput as `open_register` does.
    """
    register = _etcd_register(location[_ETCD])
    try:
        return await register.claim_for_cluster(cluster, is_new=is_new)
    finally:
        register.close()


def _open_etcd(location: Mapping[str, Any]) -> OpenRegister:
    register = _etcd_register(location)

    async def close() -> None:
        register.close()

    return OpenRegister(register, close)


def _etcd_register(location: Mapping[str, Any]) -> EtcdRegister:
    try:
        from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
    except ImportError as error:
        raise InvalidInput("etcd_endpoints", "the packages of raymq's extra `etcd`", str(error)) from error
    tls = None if location["tls"] is None else client_context(Tls(**location["tls"]))
    return EtcdRegister(
        location["endpoints"], location["prefix"], None if tls is None else tls.now, location.get("cluster")
    )
