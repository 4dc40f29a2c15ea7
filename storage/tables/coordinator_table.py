"""The tables of coordinators and of all brokers that ever existed.

A coordinator keeps what is kept on one broker only, such as a series of writes. Every broker may store any coordinator,
so that a coordinator is known while it is offline. The coordinator of a key never changes.

Two brokers are *synced* if each knows the name of the other, and the one that asked has copied all coordinators of the
other. A name is kept until an administrator removes the broker for good. Name servers forget brokers, and the answer
"there is none" of all brokers is not valid if one of them was forgotten.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final, NamedTuple

from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The most coordinators that one broker stores.
MAX_COORDINATORS: Final = 100_000
#: The longest key, in characters.
MAX_KEY_LENGTH: Final = 512
#: The limit of known brokers: as many as a name server accepts.
MAX_KNOWN_BROKERS: Final = 2_000
_KIND: Final = re.compile(r"[a-z]{1,32}")
_BROKER: Final = re.compile(r"[^\x00-\x1f/]{1,127}")


class CoordinatorPage(NamedTuple):
    """A page of known coordinators: kind, key and coordinator of each.

    `last` is the position after which the next page begins; "" if this page is the last.
    """

    entries: list[tuple[str, str, str]]
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
        self._coordinators: dict[str, tuple[str, str, str]] = {}

    def find(self, kind: str, key: str) -> str | None:
        """Return the name of the coordinator of `key`, or None if none is stored here.

        Raise InvalidInput if the kind or key is not valid.
        """
        known = self._coordinators.get(_hash(kind, key))
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
        if len(self._coordinators) >= self._most:
            raise InvalidInput("key", f"one of at most {self._most} keys with a coordinator", key)
        self.record_durably((kind, key, coordinator))
        return coordinator

    def page(self, after: str, most: int) -> CoordinatorPage:
        """Return at most `most` stored coordinators, in the order of the keys' hashes.

        `after` is the `last` of the previous page, "" for the first page.
        """
        following = sorted(name for name in self._coordinators.copy() if name > after)
        page = following[:most]
        return CoordinatorPage([self._coordinators[name] for name in page], page[-1] if len(following) > most else "")

    def count_of(self, broker: str) -> int:
        """Count the keys of which `broker` is the coordinator."""
        return sum(coordinator == broker for _, _, coordinator in self._coordinators.copy().values())

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, key, coordinator = fields
        self._coordinators.setdefault(_hash(kind, key), (kind, key, check_broker_name(coordinator)))

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each coordinator."""
        yield from self._coordinators.copy().values()


class KnownBrokers(JournaledTable):
    """The brokers that the broker of one store directory knows.

    Events: [name, whether it is synced], or [name] for one that is forgotten.

    One thread at a time; `known` may be read on any thread.
    """

    NUMBER: ClassVar = 10
    COPIES: ClassVar = 2

    def __init__(self, most: int = MAX_KNOWN_BROKERS) -> None:
        self._most = most
        self._known: Mapping[str, bool] = {}

    @property
    def known(self) -> Mapping[str, bool]:
        """Return each known broker and whether it is synced; a returned table never changes."""
        return self._known

    def add(self, names: Iterable[str], *, synced: bool) -> None:
        """Store brokers durably; they survive a machine crash.

        A synced broker stays synced.

        Raises:
            InvalidInput: a name is not valid, or the table would be too large. StoreFull, StoreFailed: it cannot be
                written.
        """
        brokers = {check_broker_name(name): synced for name in names}
        news = {name: each for name, each in brokers.items() if name not in self._known or each > self._known[name]}
        if len(self._known.keys() | news.keys()) > self._most and news:
            raise InvalidInput("broker", f"one of at most {self._most}", ", ".join(sorted(news))[:200])
        self.record_durably(*news.items())
        self.sync()

    def forget(self, name: str) -> None:
        """Remove a broker that was permanently removed from the cluster.

        Raise StoreFull or StoreFailed if it cannot be written.
        """
        if name in self._known:
            self.record_durably([name])
        self.sync()

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        name, *synced = fields
        known = {**self._known, check_broker_name(name): bool(synced and synced[0])}
        if not synced:
            del known[name]
        self._known = known

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each broker."""
        yield from self._known.items()


def check_broker_name(name: str) -> str:
    """Return `name`, or raise InvalidInput if it is not a valid broker name."""
    if not is_valid_broker(name):
        raise InvalidInput("broker", "a broker's name", name)
    return name


def is_valid_broker(name: object) -> bool:
    """Return True if `name` is a valid broker name."""
    return isinstance(name, str) and _BROKER.fullmatch(name) is not None


def _hash(kind: str, key: str) -> str:
    if not _KIND.fullmatch(kind):
        raise InvalidInput("kind", "1 to 32 small letters", kind)
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidInput("key", f"1 to {MAX_KEY_LENGTH} characters", key)
    return hashlib.blake2b(f"{kind}\0{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
