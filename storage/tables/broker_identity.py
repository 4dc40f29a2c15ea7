"""The identity of a broker that is kept across restarts: `raymq/broker.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from raymq.storage.files import json_file


def read_port_epoch(path: Path) -> tuple[int, int]:
    """Return the broker's port and the epoch of its last start.

    Both are zero if there is no file.

    Raises:
        StoreCorrupt: neither the file nor its spare copy can be read.
    """
    broker = read_broker_identity(path)
    return broker.port, broker.epoch


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The broker that owns a directory.

    It has the broker's name and cluster, the host and port on which it last listened, and its epoch.
    """

    name: str = ""
    cluster: str = ""
    host: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    epoch: Annotated[int, Meta(ge=0)] = 0


def read_broker_identity(path: Path) -> BrokerIdentity:
    """Return the identity of the directory's broker, or an empty one without a file.

    Raise as `read_port_epoch` does.
    """
    return json_file.load_as(path, _broker)


def write_identity(path: Path, *, name: str, cluster: str, host: str, port: int, epoch: int) -> None:
    """Save a broker's identity; raise as `json_file.save` does."""
    write_broker_identity(path, BrokerIdentity(name, cluster, host, port, epoch))


def write_broker_identity(path: Path, broker: BrokerIdentity) -> None:
    """Save the identity of the directory's broker; raise as `json_file.save` does."""
    json_file.save(path, asdict(broker), _broker)


def _broker(raw: Mapping[str, Any]) -> BrokerIdentity:
    return msgspec.convert(raw, BrokerIdentity)
