"""The replicas in sync, as their master sees them, and what is confirmed: what every one of them has.

The register says who is in the set; this machine says what of the stream all of them have, and when the set ought to be
another one. While a change of the set is being decided, the old set and the new one count together, so that whoever may
be elected has all that was confirmed: a member leaves this machine only when the register is known to be without it.

    master's end  |---------------------------------------->
    replica 2     |-------------------------------->        acknowledged
    replica 3     |------------------------>
    confirmed     |------------------------>                the smallest of them; it never goes back
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.positions import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError

#: A member that has not had, for so long, what the master had is put out of the set.
LAG_SECONDS: Final = 2.5
#: The master looks at its members more often than this; if not, it was stopped itself, and blames nobody for that.
_STOPPED_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Peer:
    """What is known of a replica in this epoch."""

    #: By which connection it acknowledges; None: it is not connected.
    connection: int | None
    #: What it said last that it has; None: nothing in this epoch.
    has: StreamPosition | None
    #: When it last had all that the master had by then.
    caught_up_at: float
    #: When it spoke last.
    spoke_at: float
    #: The nonce of its process, by which it is registered; "": it has not connected.
    nonce: str = ""


class InSyncSet:
    """The set of one group in one epoch of one master. Belongs to the broker's loop.

    Attributes:
        confirmed: what every member has; consumers see no more than that.
        members: the set as the register has it, as far as is known here.
        proposed: the set that is being asked for; None: no change is under way.
    """

    def __init__(
        self,
        own: int,
        members: Collection[int],
        start: StreamPosition,
        clock: Callable[[], float],
        *,
        confirmed: StreamPosition = BEGIN,
        lag_seconds: float = LAG_SECONDS,
    ) -> None:
        """Begin an epoch.

        Args:
            own: the master's number, always a member.
            members: the set that the election registered.
            start: where the epoch begins, which is the master's end.
            clock: seconds (`storage.clock.boottime`).
            confirmed: what was known to be confirmed before.
            lag_seconds: how long a member may lack something before it is put out.
        """
        self._own = own
        self._start = start
        self._clock = clock
        self._lag_seconds = lag_seconds
        self.members = frozenset(members) | {own}
        self.proposed: frozenset[int] | None = None
        self.confirmed = confirmed
        self._end = self._safe = start
        now = clock()
        self._looked_at = now
        #: When the master's own share was last done for all that it had by then.
        self._safe_at = now
        #: Where the stream ended at each look of the last seconds, oldest first.
        self._ends: deque[tuple[float, StreamPosition]] = deque([(now, start)])
        self._peers = {each: _Peer(None, None, now, now) for each in self.members - {own}}
        self._confirm()

    @property
    def counted(self) -> frozenset[int]:
        """Who has to have something before it is confirmed: the set, and the one that is being asked for."""
        return self.members if self.proposed is None else self.members | self.proposed

    @property
    def surely(self) -> frozenset[int]:
        """Who is in the set whatever becomes of the change that is being decided."""
        return self.members if self.proposed is None else self.members & self.proposed

    @property
    def master_lags(self) -> bool:
        """Whether the master itself is as late as a member that is put out: its disk does not do its share."""
        return self._clock() - self._safe_at > self._lag_seconds

    def acknowledged_by(self, replica: int) -> StreamPosition | None:
        """What a replica has said to have in this epoch; None: nothing."""
        if replica == self._own:
            return self._safe
        peer = self._peers.get(replica)
        return None if peer is None else peer.has

    def appended(self, end: StreamPosition, safe: StreamPosition) -> bool:
        """The master's stream ends at `end`, and its own share of an acknowledgement is done up to `safe`.

        That is what is in its files, or with sync flush what is on disk. Whether more is confirmed by it.
        """
        if self._end.covers(end) and self._safe.covers(safe):
            return False
        self._end, self._safe = self._end.join(end), self._safe.join(safe)
        return self._confirm()

    def connected(self, replica: int, connection: int, position: StreamPosition, nonce: str) -> bool:
        """A replica follows from `position`, by this connection; what others of it say counts no more.

        Where its stream ends is no acknowledgement: that may not be on its disk. But it has no more than that.

        Raises:
            ProtocolError: it claims more than there is.
        """
        self._check(replica, position)
        now = self._clock()
        peer = self._peers.get(replica)
        # A member that comes back has the time it had; another one has to catch up first.
        caught_up_at = now - self._lag_seconds - 1 if peer is None else peer.caught_up_at
        has = None if peer is None or peer.has is None or peer.nonce != nonce else peer.has.meet(position)
        self._peers[replica] = _Peer(connection, has, caught_up_at, now, nonce)
        return self._confirm()

    def gives_up(self, replica: int) -> None:
        """A replica is about to drop what it has, for a snapshot: it is to leave the set first, and begins anew."""
        peer = self._peers.get(replica)
        if peer is not None:
            peer.has, peer.caught_up_at = None, -math.inf

    def disconnected(self, replica: int, connection: int) -> None:
        """A connection has ended; the replica has what it has."""
        peer = self._peers.get(replica)
        if peer is not None and peer.connection == connection:
            peer.connection = None

    def acknowledged(self, replica: int, connection: int, position: StreamPosition) -> bool:
        """A replica says what it has; whether more is confirmed by it.

        Raises:
            ProtocolError: it claims more than there is; the connection is to be closed.
        """
        peer = self._peers.get(replica)
        if peer is None or peer.connection != connection:
            return False
        self._check(replica, position)
        now = self._clock()
        if position.covers(self._end):
            peer.caught_up_at = now
        peer.spoke_at, peer.has = now, position
        return self._confirm()

    def wanted(self) -> frozenset[int] | None:
        """The set that ought to be, if it is another one and no change is under way; call it a few times a second."""
        now = self._clock()
        stopped = now - self._looked_at
        self._looked_at = now
        if stopped > _STOPPED_SECONDS:
            for peer in self._peers.values():
                peer.caught_up_at += stopped
            self._safe_at += stopped
        self._look(now)
        if self.proposed is not None:
            return None
        late = {each for each in self.members - {self._own} if self._lags(each, now)}
        ready = {each for each in self._peers.keys() - self.members if self._has_caught_up(each, now)}
        wanted = (self.members - late) | ready
        return None if wanted == self.members else wanted

    def propose(self, members: Collection[int]) -> None:
        """The register is about to be asked for this set; call it before the request is sent."""
        assert self.proposed is None, "one change at a time"
        self.proposed = frozenset(members) | {self._own}

    def decided(self, members: Collection[int], nonces: Mapping[int, str]) -> bool:
        """The register's set, once no change that was asked for can be made any more; whether more is confirmed.

        After an outcome that is unknown that is only so when the register was settled (`Register.settle`). What an
        earlier process of a replica has acknowledged counts no more: it may be gone with its machine.

        Args:
            nonces: of the replicas' processes, as registered. Connections of others are to be closed.
        """
        for number, peer in self._peers.items():
            if peer.nonce != nonces.get(number, peer.nonce):
                peer.connection = peer.has = None
        self.members = frozenset(members) | {self._own}
        self.proposed = None
        now = self._clock()
        for each in self.members - {self._own}:
            self._peers.setdefault(each, _Peer(None, None, now, now))
        return self._confirm()

    def lag(self) -> dict[int, StreamPosition]:
        """For each other replica that is known, how far it is behind: bytes of the log, and state frames."""
        found = {}
        for number, peer in self._peers.items():
            has = peer.has or BEGIN
            found[number] = StreamPosition(self._end.offset - has.offset, self._end.sequence - has.sequence)
        return found

    def validate(self) -> None:
        """Assert the invariants; called after every unit test."""
        assert self._own in self.members
        assert self._end.covers(self._safe)
        assert self._end.covers(self.confirmed)
        for number, peer in self._peers.items():
            assert number != self._own
            assert peer.has is None or self._end.covers(peer.has)
        assert self.counted >= self.members

    def _check(self, replica: int, position: StreamPosition) -> None:
        if replica == self._own or min(position) < 0 or not self._end.covers(position):
            raise ProtocolError(f"replica {replica} says to have {position}, and the master has {self._end}")

    def _confirm(self) -> bool:
        all_have = self._safe
        for each in self.counted:
            has = self.acknowledged_by(each)
            if has is None:
                return False
            all_have = all_have.meet(has)
        if self.confirmed.covers(all_have):
            return False
        self.confirmed = self.confirmed.join(all_have)
        return True

    def _look(self, now: float) -> None:
        """Find out since when each peer lacks something: since the last look at which it had everything, as it says."""
        while self._ends and now - self._ends[0][0] > 2 * self._lag_seconds:
            self._ends.popleft()
        for peer in self._peers.values():
            if peer.has is not None and not peer.has.covers(self._end):
                had = (at for at, end in reversed(self._ends) if at <= peer.spoke_at and peer.has.covers(end))
                peer.caught_up_at = max(peer.caught_up_at, next(had, 0.0))
        self._ends.append((now, self._end))
        self._safe_at = max(
            self._safe_at, next((at for at, end in reversed(self._ends) if self._safe.covers(end)), 0.0)
        )

    def _lags(self, replica: int, now: float) -> bool:
        return now - self._peers[replica].caught_up_at > self._lag_seconds

    def _has_caught_up(self, replica: int, now: float) -> bool:
        peer = self._peers[replica]
        return (
            peer.connection is not None
            and peer.has is not None
            and peer.has.covers(self.confirmed)
            and peer.has.covers(self._start)
            and not self._lags(replica, now)
        )
