"""Start, find and stop a cluster, back up its stores, and provide the `raymq` command.

Each public name is imported at its first use, so that the command (`raymq.cluster.command`) starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.actors.protocol import Tls
    from raymq.cluster.bootstrap import Cluster, connect, start, stop
    from raymq.cluster.store_backup import backup_store, list_backups, restore_store, verify_backups

__all__ = [
    "Cluster",
    "Tls",
    "backup_store",
    "connect",
    "list_backups",
    "restore_store",
    "start",
    "stop",
    "verify_backups",
]

#: The module of each name: the same as the imports above, which only type checkers execute.
_MODULES = {
    "Tls": "raymq.actors.protocol",
    "backup_store": "raymq.cluster.store_backup",
    "list_backups": "raymq.cluster.store_backup",
    "restore_store": "raymq.cluster.store_backup",
    "verify_backups": "raymq.cluster.store_backup",
    "Cluster": "raymq.cluster.bootstrap",
    "connect": "raymq.cluster.bootstrap",
    "start": "raymq.cluster.bootstrap",
    "stop": "raymq.cluster.bootstrap",
}


def __getattr__(name: str) -> Any:
    """Import a public name and keep it as a module attribute. Safe for any thread."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
