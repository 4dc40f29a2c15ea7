"""All brokers of the cluster that this broker has ever known.

    <store>/raymq/members     msgpack {name: whether this broker has met it}

A broker has *met* another one if the other broker knows its name, and if it has copied all coordinators that the other
broker knew. A name is kept until an administrator removes the broker for good. Name servers forget brokers, and the
answer "there is none" of all brokers is not valid if one of them was forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgpack

from raymq.storage.errors import InvalidInput
from raymq.storage.files.fileutil import make_folder, read_whole, replace

#: The limit of known brokers: as many as a name server accepts.
MAX_KNOWN_BROKERS: Final = 2_000
_BROKER: Final = re.compile(r"[^\x00-\x1f/]{1,127}")


class KnownBrokers:
    """The brokers that the broker of one store directory knows.

    One thread at a time; `known` may be read on any thread. An unreadable file counts as empty: the brokers are
    discovered again, and each of them has to be met again.
    """

    def __init__(self, store_directory: Path, most: int = MAX_KNOWN_BROKERS) -> None:
        self._path = store_directory / "raymq" / "members"
        self._most = most
        self._known = _read(self._path)

    @property
    def known(self) -> Mapping[str, bool]:
        """Return each known broker and whether it was met; a returned table never changes."""
        return self._known

    def add(self, names: Iterable[str], *, met: bool) -> None:
        """Store brokers durably; they survive a machine crash.

        A broker that was met stays met.

        Raises:
            InvalidInput: a name is not valid, or the table would be too large. StoreFull, StoreFailed: it cannot be
                written.
        """
        brokers = {check_broker_name(name): met for name in names}
        news = {name: each for name, each in brokers.items() if name not in self._known or each > self._known[name]}
        if not news:
            return
        known = {**self._known, **news}
        if len(known) > self._most:
            raise InvalidInput("broker", f"one of at most {self._most}", ", ".join(sorted(news))[:200])
        self._keep(known)

    def forget(self, name: str) -> None:
        """Remove a broker that was permanently removed from the cluster.

        Raise StoreFull or StoreFailed if it cannot be written.
        """
        if name in self._known:
            self._keep({each: met for each, met in self._known.items() if each != name})

    def _keep(self, known: dict[str, bool]) -> None:
        make_folder(self._path.parent)
        replace(self._path, msgpack.packb(known))
        self._known = known


def check_broker_name(name: str) -> str:
    """Return `name`, or raise InvalidInput if it is not a valid broker name."""
    if not is_valid_broker(name):
        raise InvalidInput("broker", "a broker's name", name)
    return name


def is_valid_broker(name: object) -> bool:
    """Return True if `name` is a valid broker name."""
    return isinstance(name, str) and _BROKER.fullmatch(name) is not None


def _read(path: Path) -> dict[str, bool]:
    try:
        saved = msgpack.unpackb(read_whole(path))
        return {check_broker_name(name): bool(met) for name, met in saved.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError, msgpack.UnpackException):
        return {}
