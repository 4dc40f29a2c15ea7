"""Homes: on which broker of the cluster is kept what is kept on one broker only, such as a series of writes.

    <store>/raymq/homes/<hash of kind and key>     msgpack [kind, key, the home's name]

Every broker may know of any home, so that it is known who it is while it is away. A home that is known stays so.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.files.fileutil import make_folder, paths_in, read_whole, replace
from raymq.storage.tables.kept_twice import kept_twice, told_by
from raymq.storage.tables.members import checked_broker

#: So many homes are known at most; each is a file of its own.
MOST_HOMES: Final = 100_000
#: The longest key, in characters.
MOST_KEY: Final = 512
_KIND: Final = re.compile(r"[a-z]{1,32}")
#: What the name of a file looks like.
_FILE: Final = re.compile(r"[0-9a-f]{32}")


class HomesPage(NamedTuple):
    """Some of the homes that are known: kind, key and home of each, and behind what the next ones come; "": none."""

    homes: list[tuple[str, str, str]]
    last: str


class Homes:
    """The homes that the broker of one store directory knows of. One thread at a time; `find` on any."""

    def __init__(self, store_directory: Path, most: int = MOST_HOMES) -> None:
        self._root = store_directory / "raymq" / "homes"
        self._most = most
        self._count: int | None = None

    def find(self, kind: str, key: str) -> str | None:
        """The name of the broker that is the home of `key`; None: it is not known here.

        Raises:
            InvalidInput: no such kind or key can be. StoreCorrupt, StoreBusy, StoreFailed: it cannot be read.
        """
        path = self._path(kind, key)
        try:
            told_kind, told_key, home = _read(path)
        except FileNotFoundError:
            return None
        if (told_kind, told_key) != (kind, key):
            raise StoreCorrupt(str(path), 0, "no home: it is of another key")
        return home

    def remember(self, kind: str, key: str, home: str) -> str:
        """Know from now on that the broker `home` is the home of `key`, and survive the machine's death.

        Returns:
            the home that is known: another one if that is known already.

        Raises:
            InvalidInput: no such kind, key or name can be, or as many homes are known as may be.
            StoreFull, StoreFailed: it could not be written. As `find` besides.
        """
        checked_broker(home)
        known = self.find(kind, key)
        if known is not None:
            return known
        if self._count is None:
            self._count = len(paths_in(self._root))
        if self._count >= self._most:
            raise InvalidInput("key", f"one of at most {self._most} that have a home", key)
        make_folder(self._root)
        replace(self._path(kind, key), kept_twice([kind, key, home]))
        self._count += 1
        return home

    def page(self, after: str, most: int) -> HomesPage:
        """Some of all that are known, those behind `after`, in the order of their files; "": from the first one on.

        One that cannot be read is left out: `find` tells of it, and who does not hear from all makes no home.
        StoreBusy, StoreFailed.
        """
        behind = (path for path in sorted(paths_in(self._root)) if _FILE.fullmatch(path.name) and path.name > after)
        paths = list(islice(behind, most + 1))
        homes = []
        for path in paths[:most]:
            with contextlib.suppress(StoreCorrupt):
                homes.append(_read(path))
        return HomesPage(homes, paths[most - 1].name if len(paths) > most else "")

    def _path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind):
            raise InvalidInput("kind", "1 to 32 small letters", kind)
        if not 0 < len(key) <= MOST_KEY:
            raise InvalidInput("key", f"1 to {MOST_KEY} characters", key)
        told = f"{kind}\0{key}".encode("utf-8", "surrogatepass")
        return self._root / hashlib.blake2b(told, digest_size=16).hexdigest()


def _read(path: Path) -> tuple[str, str, str]:
    """Kind, key and home as a file says; FileNotFoundError, StoreCorrupt."""
    content = read_whole(path)
    try:
        kind, key, home = told_by(content, path)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"no home: {error}") from None
    if not (isinstance(kind, str) and isinstance(key, str) and isinstance(home, str)):
        raise StoreCorrupt(str(path), 0, "no home: it is no text")
    return kind, key, home
