"""All brokers of the cluster that this broker has ever known.

A broker has *met* another one if the other broker knows its name, and if it has copied all coordinators that the other
broker knew. A name is kept until an administrator removes the broker for good. Name servers forget brokers, and the
answer "there is none" of all brokers is not valid if one of them was forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final

from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The limit of known brokers: as many as a name server accepts.
MAX_KNOWN_BROKERS: Final = 2_000
_BROKER: Final = re.compile(r"[^\x00-\x1f/]{1,127}")


class KnownBrokers(JournaledTable):
    """The brokers that the broker of one store directory knows.

    Events: [name, whether it was met], or [name] for one that is forgotten.

    One thread at a time; `known` may be read on any thread.
    """

    NUMBER: ClassVar = 10
    COPIES: ClassVar = 2

    def __init__(self, most: int = MAX_KNOWN_BROKERS) -> None:
        self._most = most
        self._known: Mapping[str, bool] = {}

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
        name, *met = fields
        known = {**self._known, check_broker_name(name): bool(met and met[0])}
        if not met:
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
