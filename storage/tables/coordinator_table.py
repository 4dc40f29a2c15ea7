"""The table of coordinators: which broker keeps the data of a key.

A coordinator ("home") keeps what is kept on one broker only, such as a series of writes. Files:

    <store>/raymq/homes/<hash of kind and key>     msgpack [kind, key, the home's name]

Every broker may store any coordinator, so that a coordinator is known while it is offline. The coordinator of a key
never changes.
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
from raymq.storage.tables.known_brokers import check_broker_name
from raymq.storage.tables.mirrored_file import decode_mirrored, kept_twice

#: The most coordinators that one broker stores; each is a file of its own.
MAX_COORDINATORS: Final = 100_000
#: The longest key, in characters.
MAX_KEY_LENGTH: Final = 512
_KIND: Final = re.compile(r"[a-z]{1,32}")
#: The pattern of file names.
_FILE: Final = re.compile(r"[0-9a-f]{32}")


class CoordinatorPage(NamedTuple):
    """A page of known coordinators: kind, key and coordinator of each.

    `last` is the position after which the next page begins; "" if this page is the last.
    """

    homes: list[tuple[str, str, str]]
    last: str


class CoordinatorTable:
    """The stored coordinators of the broker of one store directory.

    One thread at a time; `find` may be called on any thread.
    """

    def __init__(self, store_directory: Path, most: int = MAX_COORDINATORS) -> None:
        self._root = store_directory / "raymq" / "homes"
        self._most = most
        self._count: int | None = None

    def find(self, kind: str, key: str) -> str | None:
        """Return the name of the coordinator of `key`, or None if none is stored here.

        Raises:
            InvalidInput: the kind or key is not valid. StoreCorrupt, StoreBusy, StoreFailed: it cannot be read.
        """
        path = self._path(kind, key)
        try:
            stored_kind, stored_key, coordinator = _read(path)
        except FileNotFoundError:
            return None
        if (stored_kind, stored_key) != (kind, key):
            raise StoreCorrupt(str(path), 0, "the coordinator of another key")
        return coordinator

    def remember(self, kind: str, key: str, coordinator: str) -> str:
        """Store durably that the broker `coordinator` coordinates `key`; it survives a machine crash.

        Returns:
            the stored coordinator, which is another one if one was stored already.

        Raises:
            InvalidInput: the kind, key or name is not valid, or the table is full.
            StoreFull, StoreFailed: it could not be written. Others as `find`.
        """
        check_broker_name(coordinator)
        known = self.find(kind, key)
        if known is not None:
            return known
        if self._count is None:
            self._count = len(paths_in(self._root))
        if self._count >= self._most:
            raise InvalidInput("key", f"one of at most {self._most} keys with a coordinator", key)
        make_folder(self._root)
        replace(self._path(kind, key), kept_twice([kind, key, coordinator]))
        self._count += 1
        return coordinator

    def page(self, after: str, most: int) -> CoordinatorPage:
        """Return a page of at most `most` stored coordinators, in the order of their files.

        `after` is the `last` of the previous page, "" for the first page. An unreadable entry is left out: `find`
        raises an error for it, and a client that does not get an answer from all brokers creates no coordinator. Raise
        StoreBusy or StoreFailed if the folder cannot be read.
        """
        behind = (path for path in sorted(paths_in(self._root)) if _FILE.fullmatch(path.name) and path.name > after)
        paths = list(islice(behind, most + 1))
        entries = []
        for path in paths[:most]:
            with contextlib.suppress(StoreCorrupt):
                entries.append(_read(path))
        return CoordinatorPage(entries, paths[most - 1].name if len(paths) > most else "")

    def _path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind):
            raise InvalidInput("kind", "1 to 32 small letters", kind)
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise InvalidInput("key", f"1 to {MAX_KEY_LENGTH} characters", key)
        name = f"{kind}\0{key}".encode("utf-8", "surrogatepass")
        return self._root / hashlib.blake2b(name, digest_size=16).hexdigest()


def _read(path: Path) -> tuple[str, str, str]:
    """Return the kind, key and coordinator of a file.

    Raise FileNotFoundError or StoreCorrupt.
    """
    content = read_whole(path)
    try:
        kind, key, coordinator = decode_mirrored(content, path)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreCorrupt(str(path), 0, f"not a coordinator: {error}") from None
    if not (isinstance(kind, str) and isinstance(key, str) and isinstance(coordinator, str)):
        raise StoreCorrupt(str(path), 0, "not a coordinator: not a text")
    return kind, key, coordinator
