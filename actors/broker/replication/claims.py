"""A broker's start, in the register: this directory, by this process, is replica n of the group.

A directory carries a random identity that it was made with, and the nonce of its last registered start. So a copy of a
directory, or an old backup of it, is told from the directory itself: whichever of two starts second does not know the
nonce that the other one has registered.

**The lease of a master that was killed.** Nobody may be elected before the lease of the last master has ended, since it
might live and acknowledge. Its next process knows better: it holds the directory's `ProcessLock`, which the former one
held from before it was registered until it ended. So it has the keepers end that lease (`former_lease`), and the
election begins at once. Why that is safe:

- What is ended is the lease of one process in one epoch: replica, nonce and epoch. A nonce is never drawn again, and
  the process that drew it is dead: a request that comes late, or twice, ends no other lease.
- A nonce names the lock under which it was drawn (`nonce_at`), and the *registered* nonce has to name the lock that the
  new process holds. Nothing is believed that the directory says: a copy or a restored backup has another inode, another
  machine another boot id, and on a file system that machines may share no nonce names a lock.
- What the dead process acknowledged it acknowledged under its lease, before it died. An acknowledgement that is still
  on its way is of a message that the in-sync set has, as far as the mode promises that; the election is the usual one.
- A renewal that the dead process sent may come behind the end of its lease, and begins it anew: the election waits for
  that as it did before.
- A keeper that has just started, and may have given a lease that it does not know of, waits for one TTL all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.leases import claim_of
from raymq.actors.keeper.messages import LeaseClaim
from raymq.storage.errors import RayMQError


class ClaimRefused(RayMQError):
    """The process may not speak for the replica; it must not serve. The message names both sides."""


@dataclass(frozen=True, slots=True)
class ReplicaClaim:
    """What a starting process knows of its directory.

    Attributes:
        number: the replica that it wants to be.
        record: the identity of its directory, its address, and the nonce that it has just drawn.
        before: the nonces that the directory's earlier starts may have registered; the new one is written down beside
            them before the register is asked, so that a crash in between is no riddle.
        tail_lost: as in `SealedState`.
        is_empty: nothing is in the directory: it follows from nothing, in the place of one that was lost.
    """

    number: int
    record: ReplicaRecord
    before: Collection[str]
    tail_lost: bool = False
    is_empty: bool = False


class ClaimWaits(RayMQError):
    """The claim may be made later; the message says what it waits for."""


def nonce_at(drawn: str, place: str) -> str:
    """Return the nonce of a process that drew this text and holds the `ProcessLock` at `place`; "": it proves nothing.

    The process keeps the lock for as long as it might acknowledge anything.
    """
    return f"{drawn}@{place}" if place else drawn


def former_lease(state: GroupState | None, number: int, place: str) -> LeaseClaim | None:
    """Return the lease that the holder of the `ProcessLock` at `place` may end; None: there is none.

    It is that of replica `number` as master, if it was given to the process that held this lock before.
    """
    claim = claim_of(state)
    if claim is None or claim.replica != number or not place:
        return None
    return claim if claim.nonce.partition("@")[2] == place else None


def connection_refusal(state: GroupState, number: int, identity: str, nonce: str) -> str | None:
    """Why a connection that says to be this replica is refused by the master; None: it is the registered process.

    A process that has just made its claim may be newer than what the master knows: it reads the register then, and the
    replica comes again.
    """
    record = state.replicas.get(number)
    if record is None:
        return f"replica {number} is not registered"
    if record.identity != identity:
        return f"replica {number} is the directory {record.identity} at {record.address}, not {identity}"
    if record.nonce != nonce:
        return f"replica {number} was started by another process, at {record.address}"
    return None


def founding_wait(state: GroupState | None, number: int) -> str | None:
    """What a replica waits for before it makes its claim; None: nothing.

    Whoever claims first is in sync, and may become master with what it has. Only replica 1 may have messages by then,
    those of a group that had one copy: so it is the first.
    """
    if state is None:
        return "the group has not been founded yet"
    if not state.replicas and number != 1:
        return "replica 1 of the group has not started yet"
    return None


def claimed(state: GroupState, claim: ReplicaClaim, *, registered_answers: bool) -> GroupState:
    """The state with the claim made, to be put into the register by compare-and-set.

    A master that has started anew is one no more: its log may be shorter than what others have confirmed, so that it
    takes part in the next election like everybody else. A member whose tail may be gone leaves the set.

    Args:
        registered_answers: whether the process that is registered now was asked at its address and has answered.

    An empty directory takes the place of one that is lost, when nobody counts on that any more.

    Raises:
        ClaimRefused: it is another directory, or a copy, or one that is in use.
        ClaimWaits: it is empty, and the one before it is in sync, as far as the register knows.
    """
    number, record = claim.number, claim.record
    known = state.replicas.get(number)
    if known is None:
        return state.with_replica(number, record)
    if known.nonce == record.nonce:
        return state
    if known.identity != record.identity and claim.is_empty and not registered_answers:
        if number in state.in_sync:
            raise ClaimWaits(f"replica {number} is in sync with a directory of {known.address}, and this one is empty")
        return state.with_replica(number, record)
    if known.identity != record.identity:
        raise ClaimRefused(
            f"replica {number} is the directory {known.identity} at {known.address}, not {record.identity}",
            remedy="start with an empty directory under a number that is free, or remove the replica first",
        )
    if known.nonce not in claim.before:
        raise ClaimRefused(
            f"replica {number} was started at {known.address} after this directory was copied or backed up",
            remedy="use the directory that was started last; a copy may lack messages that were acknowledged",
        )
    if registered_answers:
        raise ClaimRefused(f"replica {number} runs at {known.address}: two processes have copies of one directory")
    after = state.electing() if state.master == number else state
    after = after.with_replica(number, record)
    rest = after.in_sync - {number}
    if claim.tail_lost and rest and number in after.in_sync:
        after = replace(after, in_sync=rest, set_epoch=after.set_epoch + 1)
    return after
