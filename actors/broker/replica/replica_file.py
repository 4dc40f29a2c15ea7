"""Store a replica's own metadata in `raymq/replica.json`; it is never shipped.

{"identity": "5f..", "nonces": ["91.."], "sealed": 8, "port": 10912, "boot": "e1..", "stopped": false,
"tailLost": false, "memoryLost": false, "wiping": null, "flushes": true}
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raymq.storage.emergency_cleaner import releasable_disk_reserve
from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil, json_file
from raymq.storage.store_paths import StorePaths

#: After more unregistered starts than this in a row the oldest nonces are dropped.
_MAX_NONCES: Final = 1_000
_REMEDY: Final = "remove the directory from the group and start the replica with an empty one"


@dataclass(frozen=True, slots=True)
class ReplicaMetadata:
    """The persistent metadata of a replica.

    Attributes:
        identity: the random text with which the directory was created.
        nonces: of the starts that may be registered.
        fenced: the replica follows no master of an epoch before this one any more ("sealed" in the file).
        port: where replicas connect to it if it is master; 0: none was chosen yet.
        boot: the boot id of the machine when the replica last ran.
        stopped: it was stopped properly, with all data on disk.
        tail_lost: data that it had when it was last in sync may be lost.
        memory_lost: since it was last in sync its machine went down: log and state may have lost different parts.
        wiping: its log is being replaced by an empty one that begins at this offset; None: it is not.
        flushes: in its last run it acknowledged only data on disk; None: RayMQ 0.1 did not store it.
    """

    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    nonces: tuple[str, ...] = ()
    fenced: int = 0
    port: int = 0
    boot: str = ""
    stopped: bool = True
    tail_lost: bool = False
    wiping: int | None = None
    flushes: bool | None = None
    memory_lost: bool = False


class ReplicaFile:
    """The file of one directory, usable from any thread.

    A change is on disk when the call returns.

    Attributes:
        now: the current content.
    """

    def __init__(self, directory: Path) -> None:
        """Read the file, or create one.

        Raises:
            StoreCorrupt: it cannot be read. StoreFull, StoreBusy, StoreFailed: it cannot be read or created now.
        """
        self._directory = directory
        self._path = StorePaths(directory).replica
        self._changing = threading.Lock()
        try:
            self.now = _memory(json.loads(fileutil.read_whole(self._path)))
        except FileNotFoundError:
            fileutil.make_folder(self._path.parent)
            self.now = ReplicaMetadata()
            self._save(self.now)
        except json_file.DECODE_ERRORS as error:
            raise StoreCorrupt(str(self._path), 0, f"not readable: {error}", remedy=_REMEDY) from error

    def change(self, **changes: Any) -> None:
        """Change some fields durably.

        Raise StoreFull or StoreFailed if that fails: `now` is then unchanged, but the file may have changed.
        """
        with self._changing:
            changed = replace(self.now, **changes)
            if changed != self.now:
                self._save(changed)
                self.now = changed

    def add_nonce(self, nonce: str) -> tuple[str, ...]:
        """Add the nonce of another start; return the nonces before it."""
        before = self.now.nonces
        self.change(nonces=(*before, nonce)[-_MAX_NONCES:])
        return before

    def _save(self, metadata: ReplicaMetadata) -> None:
        data = {
            "identity": metadata.identity,
            "nonces": list(metadata.nonces),
            "sealed": metadata.fenced,
            "port": metadata.port,
            "boot": metadata.boot,
            "stopped": metadata.stopped,
            "tailLost": metadata.tail_lost,
            "memoryLost": metadata.memory_lost,
            "wiping": metadata.wiping,
            "flushes": metadata.flushes,
        }
        # Without the `.bak` of other files: an older file's fenced epoch and nonces must not be used.
        with releasable_disk_reserve(self._directory):  # needed for starts and fencing, and so for elections
            fileutil.replace(self._path, json.dumps(data).encode())


def _memory(raw: Any) -> ReplicaMetadata:
    wiping, flushes = raw["wiping"], raw.get("flushes")
    metadata = ReplicaMetadata(
        str(raw["identity"]),
        tuple(str(each) for each in raw["nonces"]),
        int(raw["sealed"]),
        int(raw["port"]),
        str(raw["boot"]),
        bool(raw["stopped"]),
        bool(raw["tailLost"]),
        None if wiping is None else int(wiping),
        None if flushes is None else bool(flushes),
        bool(raw.get("memoryLost", False)),
    )
    if not metadata.identity or metadata.fenced < 0 or not 0 <= metadata.port < 1 << 16:
        raise ValueError("not the data of a replica")
    return metadata
