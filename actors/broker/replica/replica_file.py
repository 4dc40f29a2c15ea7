"""What a replica remembers of itself: `raymq/replica.json`, which is never shipped to others.

{"identity": "5f..", "nonces": ["91.."], "sealed": 8, "port": 10912, "boot": "e1..", "stopped": false,
"tailLost": false, "wiping": null, "flushes": true}
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil, json_file
from raymq.storage.making_room import ballast_at_hand

#: More starts than this in a row that could not be registered: the oldest nonces are forgotten.
_MOST_NONCES: Final = 1_000
_REMEDY: Final = "take the directory out of the group and let the replica begin with an empty one"


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """What is remembered.

    Attributes:
        identity: the random text that the directory was made with.
        nonces: of the starts that may be registered.
        sealed: it follows no master of an epoch before this one any more.
        port: where replicas connect to it if it is master; 0: none was chosen yet.
        boot: the machine's start in which it ran last.
        stopped: it was stopped properly, with all on disk.
        tail_lost: what it had when it was in sync last may be gone.
        wiping: its log is being replaced by an empty one that begins there; None: it is not.
        flushes: it acknowledges what is on disk, as it ran last; None: RayMQ 0.1 did not say.
    """

    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    nonces: tuple[str, ...] = ()
    sealed: int = 0
    port: int = 0
    boot: str = ""
    stopped: bool = True
    tail_lost: bool = False
    wiping: int | None = None
    flushes: bool | None = None


class ReplicaFile:
    """The file of one directory; what is changed is on disk when the call returns. Any thread.

    Attributes:
        now: what it says.
    """

    def __init__(self, directory: Path) -> None:
        """Read it, or begin one.

        Raises:
            StoreCorrupt: it cannot be read. StoreFull, StoreBusy, StoreFailed: it cannot be read or begun now.
        """
        self._directory = directory
        self._path = directory / "raymq" / "replica.json"
        self._changing = threading.Lock()
        try:
            self.now = _memory(json.loads(fileutil.read_whole(self._path)))
        except FileNotFoundError:
            fileutil.make_folder(self._path.parent)
            self.now = ReplicaMemory()
            self._save(self.now)
        except json_file.ANOTHER_FORM as error:
            raise StoreCorrupt(str(self._path), 0, f"not readable: {error}", remedy=_REMEDY) from error

    def change(self, **changes: Any) -> None:
        """Change some of it; StoreFull, StoreFailed: unchanged here, and on disk perhaps."""
        with self._changing:
            changed = replace(self.now, **changes)
            if changed != self.now:
                self._save(changed)
                self.now = changed

    def add_nonce(self, nonce: str) -> tuple[str, ...]:
        """Another start begins; the nonces of those before."""
        before = self.now.nonces
        self.change(nonces=(*before, nonce)[-_MOST_NONCES:])
        return before

    def _save(self, memory: ReplicaMemory) -> None:
        told = {
            "identity": memory.identity,
            "nonces": list(memory.nonces),
            "sealed": memory.sealed,
            "port": memory.port,
            "boot": memory.boot,
            "stopped": memory.stopped,
            "tailLost": memory.tail_lost,
            "wiping": memory.wiping,
            "flushes": memory.flushes,
        }
        # Without the `.bak` of other files: what an older one says of seals and nonces may not be believed.
        with ballast_at_hand(self._directory):  # nobody starts without it, nor is sealed, and so elected
            fileutil.replace(self._path, json.dumps(told).encode())


def _memory(raw: Any) -> ReplicaMemory:
    wiping, flushes = raw["wiping"], raw.get("flushes")
    memory = ReplicaMemory(
        str(raw["identity"]),
        tuple(str(each) for each in raw["nonces"]),
        int(raw["sealed"]),
        int(raw["port"]),
        str(raw["boot"]),
        bool(raw["stopped"]),
        bool(raw["tailLost"]),
        None if wiping is None else int(wiping),
        None if flushes is None else bool(flushes),
    )
    if not memory.identity or memory.sealed < 0 or not 0 <= memory.port < 1 << 16:
        raise ValueError("no replica's memory")
    return memory
