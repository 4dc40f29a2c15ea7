"""The table of coordinators: which broker keeps the data of a key.

A coordinator ("home") keeps what is kept on one broker only, such as a series of writes. Every broker may store any
coordinator, so that a coordinator is known while it is offline. The coordinator of a key never changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.tables.known_brokers import check_broker_name

#: The most coordinators that one broker stores.
MAX_COORDINATORS: Final = 100_000
#: The longest key, in characters.
MAX_KEY_LENGTH: Final = 512
_KIND: Final = re.compile(r"[a-z]{1,32}")


class CoordinatorPage(NamedTuple):
    """A page of known coordinators: kind, key and coordinator of each.

    `last` is the position after which the next page begins; "" if this page is the last.
    """

    homes: list[tuple[str, str, str]]
    last: str


class CoordinatorTable(JournaledTable):
    """The stored coordinators of the broker of one store directory.

    Events: [kind, key, coordinator].

    One thread at a time; `find` may be called on any thread.
    """

    NUMBER: ClassVar = 9
    COPIES: ClassVar = 2

    def __init__(self, most: int = MAX_COORDINATORS) -> None:
        self._most = most
        #: Kind, key and coordinator by the hash of kind and key, which is the order of pages.
        self._homes: dict[str, tuple[str, str, str]] = {}

    def find(self, kind: str, key: str) -> str | None:
        """Return the name of the coordinator of `key`, or None if none is stored here.

        Raise InvalidInput if the kind or key is not valid.
        """
        known = self._homes.get(_hash(kind, key))
        return None if known is None else known[2]

    def remember(self, kind: str, key: str, coordinator: str) -> str:
        """Store durably that the broker `coordinator` coordinates `key`; it survives a machine crash.

        Returns:
            the stored coordinator, which is another one if one was stored already.

        Raises:
            InvalidInput: the kind, key or name is not valid, or the table is full.
            StoreFull, StoreFailed: it could not be written.
        """
        check_broker_name(coordinator)
        known = self.find(kind, key)
        if known is not None:
            self.sync()
            return known
        if len(self._homes) >= self._most:
            raise InvalidInput("key", f"one of at most {self._most} keys with a coordinator", key)
        self.record_durably((kind, key, coordinator))
        return coordinator

    def page(self, after: str, most: int) -> CoordinatorPage:
        """Return at most `most` stored coordinators, in the order of the keys' hashes.

        `after` is the `last` of the previous page, "" for the first page.
        """
        following = sorted(name for name in self._homes.copy() if name > after)
        page = following[:most]
        return CoordinatorPage([self._homes[name] for name in page], page[-1] if len(following) > most else "")

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, key, coordinator = fields
        self._homes.setdefault(_hash(kind, key), (kind, key, check_broker_name(coordinator)))

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each coordinator."""
        yield from self._homes.copy().values()


def _hash(kind: str, key: str) -> str:
    if not _KIND.fullmatch(kind):
        raise InvalidInput("kind", "1 to 32 small letters", kind)
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidInput("key", f"1 to {MAX_KEY_LENGTH} characters", key)
    return hashlib.blake2b(f"{kind}\0{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
