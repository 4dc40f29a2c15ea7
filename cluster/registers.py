"""Where the register of a cluster is: on keepers, which a start makes, or on an etcd that an operator runs.

Which one it is stands beside the brokers' layout, and stays so: in another register nobody would know who was master
last, and whose log counts. Of an etcd that is a random text, which stands in it, too: its servers may have other
addresses at the next start.
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
from raymq.actors.keeper.serving.location import etcd_location, founded_location, is_of, keepers_at, published
from raymq.actors.wire.commands.keeper import KEEPERS, REGISTER
from raymq.cluster import keepers
from raymq.cluster.config import ClusterConfig
from raymq.storage.files import json_file

#: As `keepers.LAYOUT_FILE`, of a cluster whose register is on an etcd.
ETCD_FILE: Final = "raymq-etcd.json"
#: How long an etcd is asked whose register it has; it may be starting.
_ASK_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.5


def make(
    namespace: str,
    directory: Path,
    hosts: Sequence[tuple[str, str]],
    settings: ClusterConfig,
    seen: Mapping[str, Collection[str]],
) -> dict[str, Any]:
    """See to it that the register is there; where it is (`raymq.actors.keeper.serving.location`).

    Raises:
        InvalidInput: it was on the other one, or another etcd, before; or it is another cluster's.
        RegisterError: etcd does not answer.
        BrokerUnavailable, RayMQError: as `keepers.make`.
    """
    before = directory / (keepers.LAYOUT_FILE if settings.etcd is not None else ETCD_FILE)
    if before.exists():
        raise InvalidInput(
            "etcd_endpoints",
            f"as at the first start with replicas: by {before} the register is {_kind(settings.etcd is None)}; who "
            "removes that file begins with a register that knows of no master, and no group of before has one again",
            None if settings.etcd is None else list(settings.etcd.endpoints),
        )
    if settings.etcd is None:
        return keepers.make(namespace, directory, hosts, settings.tls, seen).to_json()
    return _make_etcd(directory / ETCD_FILE, etcd_location(settings.etcd, namespace))


def _make_etcd(file: Path, location: dict[str, Any]) -> dict[str, Any]:
    noted = json_file.load_as(file, dict)
    cluster, is_new = noted.get("cluster") or uuid.uuid4().hex, not noted.get("founded")
    if is_new:
        json_file.save(file, {**location, "cluster": cluster, "founded": False}, dict)
    if not _is_of(location, cluster, is_new=is_new):
        where = f"{', '.join(location['etcd']['endpoints'])}, below {location['etcd']['prefix']}/"
        whose = "another cluster of this name" if is_new else "no register of this cluster"
        raise InvalidInput(
            "etcd_endpoints",
            f"an etcd with {'a place for the register' if is_new else f'the register that {file} tells of'}",
            f"{where}, which has {whose}",
            remedy="name the etcd of the starts before; the keys there of a cluster that is gone for good have to go",
        )
    founded = founded_location(location, cluster)
    json_file.save(file, {**founded, "cluster": cluster, "founded": True}, dict)
    return founded


def _is_of(location: Mapping[str, Any], cluster: str, *, is_new: bool) -> bool:
    loop, deadline = EventLoopThread("register"), time.monotonic() + _ASK_SECONDS
    try:
        while True:
            try:
                return loop.run(is_of(location, cluster, is_new=is_new))
            except RegisterError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)
    finally:
        loop.stop()


def known(directory: Path) -> dict[str, Any]:
    """Where the last start has met it; BrokerUnavailable: none has."""
    return json_file.load_as(directory / ETCD_FILE, dict) or keepers.known(directory).to_json()


def entries(register_at: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What name servers are given of it, by their entries' namespaces."""
    members = keepers_at(register_at).members
    return {
        KEEPERS: {str(number): member.address for number, member in members.items()},
        REGISTER: published(register_at),
    }


def _kind(on_etcd: bool) -> str:
    return "on an etcd" if on_etcd else "on keepers"
