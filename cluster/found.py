"""Where this user's clusters are found: a file for each namespace, written by who starts the cluster.

With it another program, or a command in another terminal, reaches the cluster by its sockets, without looking for Ray.
The files lie in `~/.raymq` (RAYMQ_HOME), readable by their user alone; a user without a home has a folder of its own
among the temporary files. They are hints: what they name may be gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from raymq.actors.protocol import Tls

HOME = "RAYMQ_HOME"
_LISTEN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """Where a cluster is: its name servers, its Ray ("host:port", None: not known), and the TLS of its sockets."""

    name_servers: tuple[str, ...]
    ray_address: str | None = None
    tls: Tls | None = None

    def answers(self) -> bool:
        """Whether somebody listens at one of the addresses."""
        return any(map(_listens, self.name_servers))


def save(namespace: str, name_servers: Sequence[str], ray_address: str | None, tls: Tls | None) -> None:
    """Write where the cluster in `namespace` is. A folder that cannot be written is no reason for a start to fail."""
    content = {
        "name_servers": list(name_servers),
        "ray_address": ray_address,
        "tls": None if tls is None else asdict(tls),
    }
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile("w", dir=_folder(), delete=False) as file:
        json.dump(content, file)
        file.flush()
        os.replace(file.name, _folder() / f"{namespace}.json")


def load(namespace: str) -> Found | None:
    """Where the cluster in `namespace` was last; None if this user started none, or the file cannot be read."""
    try:
        content = json.loads((_folder() / f"{namespace}.json").read_text("utf-8"))
        tls = content.get("tls")
        return Found(
            tuple(map(str, content["name_servers"])), content.get("ray_address"), None if tls is None else Tls(**tls)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def forget(namespace: str) -> None:
    """The cluster was stopped."""
    with contextlib.suppress(OSError):
        (_folder() / f"{namespace}.json").unlink()


def lock_file(namespace: str) -> Path:
    """The file that a start locks, so that two of one user are made one after the other; OSError: no folder."""
    return _folder() / f"{namespace}.lock"


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTEN_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def _folder() -> Path:
    """The folder, made if it is not there; OSError if there can be none that is this user's own."""
    try:
        folder = Path(os.environ.get(HOME) or Path.home() / ".raymq")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home of its own
        folder = Path(tempfile.gettempdir()) / f"raymq-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _check_own(folder)
    return folder


def _check_own(folder: Path) -> None:
    """PermissionError for a folder, in a place where all may write, that somebody else made or could have filled."""
    is_like = folder.lstat()
    if not stat.S_ISDIR(is_like.st_mode) or is_like.st_uid != os.getuid() or is_like.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone, set {HOME} to another one")
