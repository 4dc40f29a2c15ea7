"""The files in which a user's clusters are recorded, one for each namespace.

The start of a cluster writes its file. With the file another program, or a command in another terminal, reaches the
cluster by its sockets, without looking for Ray. The files are in `~/.raymq` (RAYMQ_HOME), readable by their user alone;
for a user without a home they are in a folder of the user's own in the directory for temporary files.

The files are hints: a recorded cluster may have ended, and another cluster may use its ports
(`raymq.cluster.cluster_file_check` verifies it). Whoever can write the files can direct this user's programs to another
cluster, so files that another user may write are refused.
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

import msgspec

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Tls
from raymq.storage.files import json_file

HOME_VARIABLE = "RAYMQ_HOME"


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """The addresses of a cluster: name servers and Ray, with the sockets' TLS settings.

    `ray_address` is "host:port", None if unknown. `pid` is the process of `raymq cluster start` that has the cluster's
    Ray and ends with it, if there is one.
    """

    name_servers: tuple[str, ...]
    ray_address: str | None = None
    tls: Tls | None = None
    pid: int | None = None


def save(
    namespace: str, name_servers: Sequence[str], ray_address: str | None, tls: Tls | None, pid: int | None = None
) -> None:
    """Record the addresses of the cluster in `namespace`.

    A folder that cannot be written does not fail the start.
    """
    content = asdict(ClusterEndpoint(tuple(name_servers), ray_address, tls, pid))
    with (
        contextlib.suppress(OSError, InvalidInput),
        tempfile.NamedTemporaryFile("w", dir=_folder(), delete=False) as file,
    ):  # The file has mode 0600.
        json.dump(content, file)
        file.flush()
        os.replace(file.name, _folder() / f"{namespace}.json")


def save_process(namespace: str, pid: int) -> None:
    """Add the process that has a cluster's Ray to the cluster's file."""
    with contextlib.suppress(InvalidInput):
        known = load(namespace)
        if known is not None:
            save(namespace, known.name_servers, known.ray_address, known.tls, pid)


def load(namespace: str) -> ClusterEndpoint | None:
    """Return the recorded addresses of the cluster in `namespace`.

    Return None if this user started no such cluster, or the file cannot be read.

    Raises:
        InvalidInput: another user may write the file or its folder, so it is not trusted.
    """
    try:
        with (_folder() / f"{namespace}.json").open(encoding="utf-8") as file:
            _check_own(file.name, os.fstat(file.fileno()), stat.S_IFREG)
            return json_file.read(file.read(), _endpoint)
    except InvalidInput:
        raise
    except (OSError, ValueError):
        return None


def _endpoint(raw: Mapping[str, Any]) -> ClusterEndpoint:
    endpoint = msgspec.convert(raw, ClusterEndpoint)
    if endpoint.tls is not None and raw["tls"].keys() - asdict(endpoint.tls).keys():
        raise ValueError("settings of TLS that this version does not have")  # it must not connect without them
    return endpoint


def forget(namespace: str, ray_address: str | None) -> None:
    """Remove the file of a stopped cluster.

    The file stays if it records a cluster of the same name in another Ray.
    """
    with contextlib.suppress(OSError, InvalidInput):
        known = load(namespace)
        if known is None or ray_address is None or known.ray_address in (None, ray_address):
            (_folder() / f"{namespace}.json").unlink()


def log_file(namespace: str) -> Path:
    """Return the log file of a cluster that runs in the background.

    Raises:
        OSError: the folder cannot be created.
        InvalidInput: another user may write the folder.
    """
    return _folder() / f"{namespace}.log"


def lock_file(namespace: str) -> Path:
    """Return the file that a start locks, which serializes the starts of one user.

    Raises:
        OSError: the folder cannot be created.
        InvalidInput: another user may write the folder.
    """
    return _folder() / f"{namespace}.lock"


def _folder() -> Path:
    """Return the folder of the files, and create it if it is missing.

    Raises:
        OSError: no folder of this user's own can be created.
        InvalidInput: another user may write the folder.
    """
    try:
        folder = Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".raymq")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        like = folder.stat()
    except (OSError, RuntimeError):  # The user has no home.
        folder = Path(tempfile.gettempdir()) / f"raymq-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        like = folder.lstat()  # In a directory that all users may write, a link may belong to another user.
    _check_own(folder, like, stat.S_IFDIR)
    return folder


def _check_own(path: Path | str, like: os.stat_result, kind: int) -> None:
    """Raise InvalidInput unless the path has the given kind and is this user's own.

    A file or folder that another user owns or may write is refused.
    """
    if stat.S_IFMT(like.st_mode) != kind:
        raise InvalidInput(
            HOME_VARIABLE, f"{path} as a {'folder' if kind == stat.S_IFDIR else 'file'}", stat.filemode(like.st_mode)
        )
    if like.st_uid != os.getuid() or like.st_mode & 0o022:
        raise InvalidInput(
            HOME_VARIABLE,
            f"{path}, which has the addresses of clusters, writable by this user alone",
            f"{stat.filemode(like.st_mode)} of user {like.st_uid}",
            remedy=f"chmod go-w {path} if it is yours, else remove it or set {HOME_VARIABLE} to another folder",
        )
