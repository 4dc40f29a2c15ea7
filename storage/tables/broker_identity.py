"""What a broker keeps of itself over its restarts: `raymq/broker.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raymq.storage.files import json_file


def read_identity(path: Path) -> tuple[int, int]:
    """The broker's port and the epoch of its last start, zeros where there is no file.

    Raises:
        StoreCorrupt: neither the file nor its spare copy can be read.
    """
    return json_file.load_as(path, _identity)


def write_identity(path: Path, *, name: str, cluster: str, port: int, epoch: int) -> None:
    """Keep a broker's identity; raises as `json_file.save`."""
    json_file.save(path, {"name": name, "cluster": cluster, "port": port, "epoch": epoch}, _identity)


def _identity(raw: Mapping[str, Any]) -> tuple[int, int]:
    port, epoch = int(raw.get("port", 0)), int(raw.get("epoch", 0))
    if not 0 <= port < 1 << 16 or epoch < 0:
        raise ValueError(f"port {port}, epoch {epoch}")
    return port, epoch
