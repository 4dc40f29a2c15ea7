"""The identity of a machine, stored on the disk with its brokers' directories.

`ray start` receives it as a custom resource (`raymq cluster host-resources`), and brokers are bound to that resource.
So if a disk is moved to another machine, with another name and address, its brokers move with it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import is_broker_name
from raymq.storage.files import json_file

FILE: Final = "raymq-host.json"
_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def host_identity(root: Path, host_name: str) -> str:
    """Return the identity of the machine with `root`; create it at the first call.

    A new identity is derived from `host_name`. Names of machines are reused, by clouds within minutes, so it has a
    random suffix. A root that has brokers already, from before machines had identities, gets the identity that its
    brokers were bound to: the host name.

    Raises:
        InvalidInput: the folder cannot be created or written.
        StoreCorrupt: the identity cannot be read.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        has_brokers = any(is_broker_name(each.name) for each in root.iterdir())
    except OSError as error:
        raise InvalidInput("root", "a folder, or a path where one can be created", f"{root}: {error}") from error
    file = root / FILE
    if known := json_file.load_as(file, _identity):
        return known
    short = re.sub(r"[^A-Za-z0-9-]", "-", host_name.partition(".")[0])[:60].strip("-") or "host"
    identity = host_name if has_brokers and _FORM.fullmatch(host_name) else f"{short}-{secrets.token_hex(3)}"
    json_file.save(file, {"host": identity}, _identity)
    return identity


def check_mounted(root: Path) -> None:
    """Raise InvalidInput if `root` is on the system's disk.

    Then the volume that should hold it is not mounted.
    """
    there = next(each for each in (root, *root.parents) if each.exists())
    if there.stat().st_dev == Path("/").stat().st_dev:
        raise InvalidInput("root", "a folder on a volume of its own, which is mounted", str(root))


def _identity(raw: Mapping[str, Any]) -> str | None:
    if not raw:
        return None
    name = raw["host"]
    if not isinstance(name, str) or not _FORM.fullmatch(name):
        raise ValueError(f"not a host's name: {name!r}")
    return name
