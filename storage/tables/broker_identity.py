"""What a broker keeps of itself over its restarts: `raymq/broker.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raymq.storage.files import json_file


def read_identity(path: Path) -> tuple[int, int]:
    """The broker's port and the epoch of its last start, zeros where there is no file.

    Raises:
        StoreCorrupt: neither the file nor its spare copy can be read.
    """
    return json_file.load_as(path, _identity)


@dataclass(frozen=True, slots=True)
class BrokerOf:
    """Whose a directory is: the broker's name, its cluster, and the host and port that it listened at last."""

    name: str = ""
    cluster: str = ""
    host: str = ""
    port: int = 0
    epoch: int = 0


def read_broker(path: Path) -> BrokerOf:
    """Whose the directory is; nothing is known where there is no file. Raises as `read_identity`."""
    return json_file.load_as(path, _broker)


def write_identity(path: Path, *, name: str, cluster: str, host: str, port: int, epoch: int) -> None:
    """Keep a broker's identity; raises as `json_file.save`."""
    write_broker(path, BrokerOf(name, cluster, host, port, epoch))


def write_broker(path: Path, broker: BrokerOf) -> None:
    """Keep whose the directory is; raises as `json_file.save`."""
    json_file.save(path, asdict(broker), _identity)


def _broker(raw: Mapping[str, Any]) -> BrokerOf:
    port, epoch = _identity(raw)
    name, cluster, host = (str(raw.get(key, "")) for key in ("name", "cluster", "host"))
    return BrokerOf(name, cluster, host, port, epoch)


def _identity(raw: Mapping[str, Any]) -> tuple[int, int]:
    port, epoch = int(raw.get("port", 0)), int(raw.get("epoch", 0))
    if not 0 <= port < 1 << 16 or epoch < 0:
        raise ValueError(f"port {port}, epoch {epoch}")
    return port, epoch
