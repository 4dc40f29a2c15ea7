"""Start, find and stop a cluster, back up its stores; the `raymq` command.

Each name is imported when it is first used: so the command's first moments (`raymq.cluster.command`) are short.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.actors.protocol import Tls
    from raymq.cluster.backup import backup_store, list_backups, restore_store, verify_backups
    from raymq.cluster.bootstrap import Cluster, connect, start, stop

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

#: Which name comes from which module: the same as the imports above, which only type checkers see.
_HOMES = {
    "Tls": "raymq.actors.protocol",
    "backup_store": "raymq.cluster.backup",
    "list_backups": "raymq.cluster.backup",
    "restore_store": "raymq.cluster.backup",
    "verify_backups": "raymq.cluster.backup",
    "Cluster": "raymq.cluster.bootstrap",
    "connect": "raymq.cluster.bootstrap",
    "start": "raymq.cluster.bootstrap",
    "stop": "raymq.cluster.bootstrap",
}


def __getattr__(name: str) -> Any:
    """A public name, imported now; from then on it is an ordinary attribute. Any thread."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
