"""Set up the register of a cluster, on keepers or on etcd.

Keepers are created by a start; an etcd is run by an operator. The choice is recorded beside the brokers' layout, and
cannot be changed: another register would not contain the last masters, so the current log of each group would be
unknown. For etcd a random cluster id is recorded, which is stored in the etcd as well, because its servers may have
other addresses at the next start.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.serving.register_location import (
    claim_for_cluster,
    claimed_location,
    etcd_location,
    keepers_at,
    location_entries,
)
from raymq.actors.wire.commands.keeper_commands import KEEPERS, REGISTER
from raymq.cluster import keeper_bootstrap
from raymq.cluster.cluster_config import ClusterConfig
from raymq.storage.files import json_file

#: Replaces `keeper_bootstrap.LAYOUT_FILE` if the register is on etcd.
ETCD_FILE: Final = "raymq-etcd.json"
#: The seconds to wait for the answer of an etcd, which may be starting.
_REQUEST_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.5


def make(
    namespace: str,
    directory: Path,
    hosts: Sequence[tuple[str, str]],
    settings: ClusterConfig,
    seen: Mapping[str, Collection[str]],
) -> dict[str, Any]:
    """Ensure that the register exists, and return its location.

    The location is that of `raymq.actors.keeper.serving.register_location`.

    Raises:
        InvalidInput: the register was of the other kind, or on another etcd, before; or it belongs to another cluster.
        RegisterError: etcd does not answer.
        BrokerUnavailable, RayMQError: as `keeper_bootstrap.make`.
    """
    before = directory / (keeper_bootstrap.LAYOUT_FILE if settings.etcd is not None else ETCD_FILE)
    if before.exists():
        raise InvalidInput(
            "etcd_endpoints",
            f"as at the first start with replicas: by {before} the register is {_kind(settings.etcd is None)}; "
            "without that file the cluster gets an empty register, and no existing group has a master again",
            None if settings.etcd is None else list(settings.etcd.endpoints),
        )
    if settings.etcd is None:
        return keeper_bootstrap.make(namespace, directory, hosts, settings.tls, seen).to_json()
    return _make_etcd(directory / ETCD_FILE, etcd_location(settings.etcd, namespace))


def _make_etcd(file: Path, location: dict[str, Any]) -> dict[str, Any]:
    noted = json_file.load_as(file, dict)
    cluster, is_new = noted.get("cluster") or uuid.uuid4().hex, not noted.get("founded")
    if is_new:
        json_file.save(file, {**location, "cluster": cluster, "founded": False}, dict)
    if not _is_of(location, cluster, is_new=is_new):
        where = f"{', '.join(location['etcd']['endpoints'])}, below {location['etcd']['prefix']}/"
        content = "another cluster of this name" if is_new else "no register of this cluster"
        raise InvalidInput(
            "etcd_endpoints",
            f"an etcd with {'a place for the register' if is_new else f'the register that {file} names'}",
            f"{where}, which has {content}",
            remedy="name the etcd of the earlier starts; delete the keys there of a cluster that is gone for good",
        )
    founded = claimed_location(location, cluster)
    json_file.save(file, {**founded, "cluster": cluster, "founded": True}, dict)
    return founded


def _is_of(location: Mapping[str, Any], cluster: str, *, is_new: bool) -> bool:
    loop, deadline = EventLoopThread("register"), time.monotonic() + _REQUEST_SECONDS
    try:
        while True:
            try:
                return loop.run(claim_for_cluster(location, cluster, is_new=is_new))
            except RegisterError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)
    finally:
        loop.stop()


def known(directory: Path) -> dict[str, Any]:
    """Return the location that the last start recorded.

    Raise BrokerUnavailable if no start recorded one.
    """
    return json_file.load_as(directory / ETCD_FILE, dict) or keeper_bootstrap.known(directory).to_json()


def entries(register_at: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the register's entries for name servers, by the entries' namespaces."""
    members = keepers_at(register_at).members
    return {
        KEEPERS: {str(number): member.address for number, member in members.items()},
        REGISTER: location_entries(register_at),
    }


def _kind(on_etcd: bool) -> str:
    return "on an etcd" if on_etcd else "on keepers"
