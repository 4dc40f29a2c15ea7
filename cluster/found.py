"""Where this user's clusters are found: a file for each namespace, written by who starts the cluster.

With it another program, or a command in another terminal, reaches the cluster by its sockets, without looking for Ray.
The files lie in `~/.raymq` (RAYMQ_HOME), readable by their user alone; a user without a home has a folder of its own
among the temporary files. They are hints: what they name may be gone, and another cluster may be there by now
(`raymq.cluster.noted` asks). But whoever could write them could lead this user's programs to a cluster of his own: what
another user may write is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Tls
from raymq.storage.files import json_file

HOME = "RAYMQ_HOME"


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """Where a cluster is: its name servers, its Ray ("host:port", None: not known), and the TLS of its sockets.

    `pid` is the process of `raymq cluster start` that has its Ray and ends with it, if there is one.
    """

    name_servers: tuple[str, ...]
    ray_address: str | None = None
    tls: Tls | None = None
    pid: int | None = None


def save(
    namespace: str, name_servers: Sequence[str], ray_address: str | None, tls: Tls | None, pid: int | None = None
) -> None:
    """Write where the cluster in `namespace` is. A folder that cannot be written is no reason for a start to fail."""
    content = {
        "name_servers": list(name_servers),
        "ray_address": ray_address,
        "tls": None if tls is None else asdict(tls),
        "pid": pid,
    }
    with (
        contextlib.suppress(OSError, InvalidInput),
        tempfile.NamedTemporaryFile("w", dir=_folder(), delete=False) as file,
    ):  # 0600
        json.dump(content, file)
        file.flush()
        os.replace(file.name, _folder() / f"{namespace}.json")


def note_process(namespace: str, pid: int) -> None:
    """Add to what is noted of a cluster the process that has its Ray and ends with it."""
    with contextlib.suppress(InvalidInput):
        known = load(namespace)
        if known is not None:
            save(namespace, known.name_servers, known.ray_address, known.tls, pid)


def load(namespace: str) -> FoundCluster | None:
    """Where the cluster in `namespace` was last; None if this user started none, or the file cannot be read.

    Raises:
        InvalidInput: another user may write the file, or its folder: it is not believed.
    """
    try:
        with (_folder() / f"{namespace}.json").open(encoding="utf-8") as file:
            _check_own(file.name, os.fstat(file.fileno()), stat.S_IFREG)
            return json_file.read(file.read(), _found)
    except InvalidInput:
        raise
    except (OSError, ValueError):
        return None


def _found(raw: Mapping[str, Any]) -> FoundCluster:
    servers, ray_address, tls, pid = raw["name_servers"], raw.get("ray_address"), raw.get("tls"), raw.get("pid")
    if not isinstance(servers, list) or not isinstance(ray_address, str | None) or not isinstance(pid, int | None):
        raise ValueError("no addresses")  # noqa: TRY004 - the text is at fault
    return FoundCluster(tuple(map(str, servers)), ray_address, None if tls is None else _tls(tls), pid)


def _tls(raw: Mapping[str, Any]) -> Tls:
    tls = Tls(**raw)
    files, flags = (tls.ca_file, tls.cert_file, tls.key_file), (tls.client_auth, tls.check_host)
    if not all(isinstance(each, str | None) for each in files) or not all(isinstance(each, bool) for each in flags):
        raise ValueError("no files of TLS")
    return tls


def forget(namespace: str, ray_address: str | None) -> None:
    """The cluster was stopped that was in that Ray; what is noted of another one of the same name stays."""
    with contextlib.suppress(OSError, InvalidInput):
        known = load(namespace)
        if known is None or ray_address is None or known.ray_address in (None, ray_address):
            (_folder() / f"{namespace}.json").unlink()


def log_file(namespace: str) -> Path:
    """The log of a cluster that runs in the background.

    Raises:
        OSError: there can be no folder. InvalidInput: another user may write it.
    """
    return _folder() / f"{namespace}.log"


def lock_file(namespace: str) -> Path:
    """The file that a start locks, so that two of one user are made one after the other.

    Raises:
        OSError: there can be no folder. InvalidInput: another user may write it.
    """
    return _folder() / f"{namespace}.lock"


def _folder() -> Path:
    """The folder, made if it is not there.

    Raises:
        OSError: there can be none that is this user's own. InvalidInput: another user may write it.
    """
    try:
        folder = Path(os.environ.get(HOME) or Path.home() / ".raymq")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        like = folder.stat()
    except (OSError, RuntimeError):  # a user without a home of its own
        folder = Path(tempfile.gettempdir()) / f"raymq-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        like = folder.lstat()  # where all may write, a link may be anybody's
    _check_own(folder, like, stat.S_IFDIR)
    return folder


def _check_own(path: Path | str, like: os.stat_result, kind: int) -> None:
    """InvalidInput for a file or folder that is not of that kind, or that somebody else made or may write."""
    if stat.S_IFMT(like.st_mode) != kind:
        raise InvalidInput(
            HOME, f"{path} as a {'folder' if kind == stat.S_IFDIR else 'file'}", stat.filemode(like.st_mode)
        )
    if like.st_uid != os.getuid() or like.st_mode & 0o022:
        raise InvalidInput(
            HOME,
            f"{path}, which says where clusters are found, written by this user alone",
            f"{stat.filemode(like.st_mode)} of user {like.st_uid}",
            remedy=f"chmod go-w {path} if it is yours, else remove it or set {HOME} to another folder",
        )
