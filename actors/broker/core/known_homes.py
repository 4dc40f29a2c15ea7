"""What a broker knows of homes, and of whom it has to know before it may say "there is none".

What is kept on one broker only (a series of writes, a stream's plans) has its home there for ever. A second home must
never be made: what the first one has committed would be committed again. A new home is made where all brokers *that
were ever there* say that they know of none, and the first of them by name decides. That they are all is seen to from
two sides:

- A broker keeps the names of all it ever heard of, and tells them to who asks. It says "there is none" only when it has
  *met* each of them: it is known there, and has copied what is known there of homes.
- Whoever has a home made says who was asked. A broker that knows of one more refuses.

So of two who make a home at the same time either both ask the same first broker, or one of them asks somebody who has
copied what the other one made.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.storage.tables.homes import Homes, HomesPage
from raymq.storage.tables.members import Members, checked_broker

#: How a broker that is gone for good is taken out of all this.
REMEDY = "if it is gone for good, Admin.forget_broker says so to all"


class KnownHomes:
    """The homes and the brokers that this one knows of. Any thread; all but `find` may wait for the disk."""

    def __init__(self, name: str, homes: Homes, members: Members) -> None:
        self._name = name
        self._homes = homes
        self._members = members
        self._lock = threading.Lock()
        #: Whether the name servers have been asked who is there since this broker is in their routes.
        self._has_looked = False

    @property
    def members(self) -> list[str]:
        """All brokers that are known of, this one too."""
        return sorted({self._name, *self._members.known})

    def check_known(self, broker: str) -> None:
        """Whether a broker is there, or was: what is kept for one that never was is kept for ever.

        BrokerUnavailable: it has not been heard of. One that has just come is heard of soon.
        """
        if broker != self._name and broker not in self._members.known:
            raise BrokerUnavailable(checked_broker(broker), f"{self._name} has not heard of it")

    def unmet(self) -> list[str]:
        """Those that this broker has not met."""
        return [name for name, met in sorted(self._members.known.items()) if not met and name != self._name]

    def find(self, kind: str, key: str) -> str | None:
        """The home of `key`; None: there is none, as far as this broker and all that it has met can know.

        Raises:
            BrokerUnavailable: it is not known here, and there are brokers that this one has not met yet.
            InvalidInput, StoreCorrupt, StoreBusy, StoreFailed: as `Homes.find`.
        """
        home = self._homes.find(kind, key)
        if home is None:
            self._check_met_all()
        return home

    def remember(self, kind: str, key: str, home: str, asked: Collection[str] | None = None) -> str:
        """Know from now on who the home of `key` is; the home that is known.

        Args:
            asked: the brokers that all said that there is none: it is this one that decides. None: it is decided.

        Raises:
            BrokerUnavailable: there are more brokers than were asked: they have to be asked first.
            InvalidInput, StoreFull, StoreFailed: as `Homes.remember`.
        """
        with self._lock:
            if asked is not None and self._homes.find(kind, key) is None:
                self._check_met_all()
                more = set(self.members).difference(asked)
                if more:
                    raise BrokerUnavailable(", ".join(sorted(more)), f"not asked yet for the home of a {kind}")
            return self._homes.remember(kind, key, home)

    def welcome(self, broker: str) -> None:
        """Another broker is there, and goes on to copy what is known here: this one has met it. As `Members.add`."""
        with self._lock:
            if broker != self._name:
                self._members.add([broker], met=True)

    def page(self, after: str, most: int) -> HomesPage:
        """As `Homes.page`."""
        with self._lock:
            return self._homes.page(after, most)

    def heard_of(self, brokers: Iterable[str]) -> None:
        """These are there, or were. As `Members.add`."""
        with self._lock:
            self._members.add(set(brokers) - {self._name}, met=False)

    def copy(self, homes: Iterable[tuple[str, str, str]]) -> None:
        """What another broker knows: kind, key and home of each. As `Homes.remember`."""
        with self._lock:
            for kind, key, home in homes:
                self._homes.remember(kind, key, home)

    def met(self, broker: str) -> None:
        """`broker` knows this one, which has copied all that was known there then. As `Members.add`."""
        with self._lock:
            self._members.add([broker], met=True)

    def looked(self) -> None:
        """The name servers have told who is there, and this broker was among them: nobody comes later unseen."""
        self._has_looked = True

    def forget(self, broker: str) -> None:
        """A broker is gone for good: it need not be asked any more. InvalidInput: it is this one."""
        if broker == self._name:
            raise InvalidInput("broker", "one that is gone for good", broker)
        with self._lock:
            self._members.forget(broker)

    def _check_met_all(self) -> None:
        unmet = self.unmet()
        if unmet:
            reason = f"{self._name} has not met it yet, and what it knows of homes"
            raise BrokerUnavailable(", ".join(unmet), reason, remedy=REMEDY)
        if not self._has_looked:
            raise BrokerUnavailable(self._name, "it has just started and does not know who else is there")
