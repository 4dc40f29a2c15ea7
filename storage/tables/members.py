"""Members: the brokers of the cluster that this one has ever heard of.

    <store>/raymq/members     msgpack {name: whether this broker has met it}

To meet a broker is to be known there, and to have copied all that it knows of homes. A name that is kept stays until an
administrator says that its broker is gone for good: name servers forget brokers, and "all of them say that there is no
such thing" means nothing where one of them was forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgpack

from raymq.storage.errors import InvalidInput
from raymq.storage.files.fileutil import make_folder, read_whole, replace

#: So many are known at most: as many brokers as a name server takes.
MOST_MEMBERS: Final = 2_000
_BROKER: Final = re.compile(r"[^\x00-\x1f/]{1,127}")


class Members:
    """Those that the broker of one store directory knows of. One thread at a time; `known` on any.

    A file that cannot be read counts as none: who is there is learned anew, and everybody has to be met again.
    """

    def __init__(self, store_directory: Path, most: int = MOST_MEMBERS) -> None:
        self._path = store_directory / "raymq" / "members"
        self._most = most
        self._known = _read(self._path)

    @property
    def known(self) -> Mapping[str, bool]:
        """Each with whether it was met; a table that was given never changes."""
        return self._known

    def add(self, names: Iterable[str], *, met: bool) -> None:
        """Know of these from now on, and survive the machine's death; who was met stays so.

        Raises:
            InvalidInput: no broker can be called so, or more are known than may be. StoreFull, StoreFailed.
        """
        told = {checked_broker(name): met for name in names}
        news = {name: each for name, each in told.items() if name not in self._known or each > self._known[name]}
        if not news:
            return
        known = {**self._known, **news}
        if len(known) > self._most:
            raise InvalidInput("broker", f"one of at most {self._most}", ", ".join(sorted(news))[:200])
        self._keep(known)

    def forget(self, name: str) -> None:
        """It is gone for good. StoreFull, StoreFailed."""
        if name in self._known:
            self._keep({each: met for each, met in self._known.items() if each != name})

    def _keep(self, known: dict[str, bool]) -> None:
        make_folder(self._path.parent)
        replace(self._path, msgpack.packb(known))
        self._known = known


def checked_broker(name: str) -> str:
    """`name`; InvalidInput if no broker can be called so."""
    if not is_broker(name):
        raise InvalidInput("broker", "a broker's name", name)
    return name


def is_broker(name: object) -> bool:
    """Whether a broker can be called so."""
    return isinstance(name, str) and _BROKER.fullmatch(name) is not None


def _read(path: Path) -> dict[str, bool]:
    try:
        told = msgpack.unpackb(read_whole(path))
        return {checked_broker(name): bool(met) for name, met in told.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError, msgpack.UnpackException):
        return {}
