"""Track the in-sync replicas on their master, and compute the high watermark.

The high watermark (`confirmed`) is the part of the stream that every member has. The register decides which replicas
are in the set. This module computes what all of them have, and when the set should change. While a change of the set is
being decided, the old set and the new one count together, so that every replica that may be elected has all that was
confirmed: a member is removed here only when the register is known to be without it.

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

from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError

#: A member that has lagged behind the master for this long is removed from the set.
LAG_SECONDS: Final = 2.5
#: The master checks its members more often than this; after a longer pause it was stopped itself, and the time of the
#: pause is not counted against the members.
_STOPPED_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Peer:
    """What is known of a replica in this epoch."""

    #: The connection by which it acknowledges; None: it is not connected.
    connection: int | None
    #: The last position that it acknowledged; None: none in this epoch.
    has: StreamPosition | None
    #: When it last had everything that the master had at that time.
    caught_up_at: float
    #: When its last acknowledgement arrived, or it connected.
    spoke_at: float
    #: The nonce of its registered process; "": it has not connected.
    nonce: str = ""


class InSyncSet:
    """The in-sync set of one group in one epoch of one master.

    It belongs to the broker's loop.

    Attributes:
        confirmed: the part that every member has; consumers see no more than that.
        members: the set in the register, as far as is known here.
        proposed: the set that is being requested; None: no change is in progress.
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
            confirmed: the part that was known to be confirmed before.
            lag_seconds: how long a member may lag before it is removed.
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
        #: When the master itself last had everything safe that it had at that time.
        self._safe_at = now
        #: Where the stream ended at each check of the last seconds, oldest first.
        self._ends: deque[tuple[float, StreamPosition]] = deque([(now, start)])
        self._peers = {each: _Peer(None, None, now, now) for each in self.members - {own}}
        self._confirm()

    @property
    def required(self) -> frozenset[int]:
        """Return the replicas that must have data before these are confirmed.

        They are the set and, while a change is in progress, the requested set.
        """
        return self.members if self.proposed is None else self.members | self.proposed

    @property
    def guaranteed(self) -> frozenset[int]:
        """Return the replicas that are in the set, whether or not a pending change succeeds."""
        return self.members if self.proposed is None else self.members & self.proposed

    @property
    def is_master_lagging(self) -> bool:
        """Return True if the master's own disk lags too long.

        The limit is the one after which a member is removed from the set.
        """
        return self._clock() - self._safe_at > self._lag_seconds

    def acknowledged_by(self, replica: int) -> StreamPosition | None:
        """Return the position that a replica has acknowledged in this epoch, or None."""
        if replica == self._own:
            return self._safe
        peer = self._peers.get(replica)
        return None if peer is None else peer.has

    def appended(self, end: StreamPosition, safe: StreamPosition) -> bool:
        """Record the master's end and the part that is safe on the master itself.

        Safe is what is in its files, or with sync flush what is on disk. Return True if more is confirmed by it.
        """
        if self._end == end and self._safe == safe:
            return False
        self._end, self._safe = self._end.join(end), self._safe.join(safe)
        return self._confirm()

    def connected(self, replica: int, connection: int, position: StreamPosition, nonce: str) -> bool:
        """Record that a replica follows from `position`, by this connection only.

        The end of its stream is no acknowledgement, because that may not be on its disk. But it has no more than that.
        Return True if more is confirmed by it.

        Raises:
            ProtocolError: it claims more than there is.
        """
        self._check(replica, position)
        now = self._clock()
        peer = self._peers.get(replica)
        # A member that returns keeps its remaining time; another replica has to catch up first.
        caught_up_at = now - self._lag_seconds - 1 if peer is None else peer.caught_up_at
        has = None if peer is None or peer.has is None or peer.nonce != nonce else peer.has.meet(position)
        self._peers[replica] = _Peer(connection, has, caught_up_at, now, nonce)
        return self._confirm()

    def reset_replica(self, replica: int) -> None:
        """Forget what a replica has, because it will drop its data for a snapshot.

        It has to leave the set first, and then starts again.
        """
        peer = self._peers.get(replica)
        if peer is not None:
            peer.has, peer.caught_up_at = None, -math.inf

    def disconnected(self, replica: int, connection: int) -> None:
        """Record that a connection has ended; the replica keeps its acknowledged position."""
        peer = self._peers.get(replica)
        if peer is not None and peer.connection == connection:
            peer.connection = None

    def acknowledged(self, replica: int, connection: int, position: StreamPosition) -> bool:
        """Record a replica's acknowledgement; return True if more is confirmed by it.

        Raises:
            ProtocolError: it claims more than there is; close the connection.
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

    def desired(self) -> frozenset[int] | None:
        """Return the set that should be registered, or None.

        None: it is the current one, or a change is in progress. Call it a few times a second.
        """
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
        desired = (self.members - late) | ready
        return None if desired == self.members else desired

    def propose(self, members: Collection[int]) -> None:
        """Record the set that is requested next; call it before the request is sent."""
        assert self.proposed is None, "one change at a time"
        self.proposed = frozenset(members) | {self._own}

    def committed(self, members: Collection[int], nonces: Mapping[int, str]) -> bool:
        """Apply the register's set; return True if more is confirmed by it.

        Call it once no requested change can be made any more. After an unknown outcome that is so only when the
        register was settled (`Register.settle`). Acknowledgements of an earlier process of a replica no longer count:
        the data may be lost with its machine.

        Args:
            nonces: of the replicas' processes, as registered. Close connections of others.
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
        """Return the lag of each other known replica: log bytes and state changes."""
        found = {}
        for number, peer in self._peers.items():
            has = peer.has or BEGIN
            found[number] = StreamPosition(self._end.offset - has.offset, self._end.sequence - has.sequence)
        return found

    def _check(self, replica: int, position: StreamPosition) -> None:
        if replica == self._own or min(position) < 0 or not self._end.covers(position):
            raise ProtocolError(f"replica {replica} reports {position}, but the master ends at {self._end}")

    def _confirm(self) -> bool:
        offset, sequence = self._safe
        for each in self.required:
            if each != self._own:
                has = self.acknowledged_by(each)
                if has is None:
                    return False
                offset, sequence = min(offset, has.offset), min(sequence, has.sequence)
        if offset <= self.confirmed.offset and sequence <= self.confirmed.sequence:
            return False
        self.confirmed = self.confirmed.join(StreamPosition(offset, sequence))
        return True

    def _look(self, now: float) -> None:
        """Update when each peer last had everything, by the recorded ends of the stream."""
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
