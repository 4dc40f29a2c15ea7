"""Where the register of a cluster is: on keepers, which a start makes, or on an etcd that an operator runs.

Which one it is stands beside the brokers' layout, and stays so: in another register nobody would know who was master
last, and whose log counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.keeper.serving.location import etcd_location, keepers_at, published
from raymq.actors.wire.commands.keeper import KEEPERS, REGISTER
from raymq.cluster import keepers
from raymq.cluster.config import ClusterConfig
from raymq.storage.files import json_file

#: As `keepers.LAYOUT_FILE`, of a cluster whose register is on an etcd.
ETCD_FILE: Final = "raymq-etcd.json"


def make(
    namespace: str,
    directory: Path,
    hosts: Sequence[tuple[str, str]],
    settings: ClusterConfig,
    seen: Mapping[str, Collection[str]],
) -> dict[str, Any]:
    """See to it that the register is there; where it is (`raymq.actors.keeper.serving.location`).

    Raises:
        InvalidInput: it was on the other one before.
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
    location = etcd_location(settings.etcd, namespace)
    json_file.save(directory / ETCD_FILE, location, dict)
    return location


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
