"""Check the claim of a starting broker: its directory and process are replica n.

A directory contains a random identity, with which it was created, and the nonce of its last registered start. So a copy
of a directory, or an old backup of it, is distinguished from the directory itself: the one that starts second does not
have the nonce that the other one has registered.

**The lease of a master that was killed.** No replica may be elected before the lease of the last master has ended,
since the master might still run and acknowledge. The next process of that replica has better information: it holds the
directory's `ProcessLock`, which the former process held from before its registration until its end. So it has the
keepers end that lease (`predecessor_lease`), and the election begins at once. Why that is safe:

- The release concerns the lease of one process in one epoch: replica, nonce and epoch. A nonce is never drawn again,
  and the process that drew it has ended: a request that comes late, or twice, ends no other lease.
- A nonce names the lock under which it was drawn (`make_nonce`), and the *registered* nonce has to name the lock that
  the new process holds. The content of the directory is not trusted: a copy or a restored backup has another inode,
  another machine another boot id, and on a file system that machines may share no nonce names a lock.
- Whatever the former process acknowledged, it acknowledged under its lease, before it ended. An acknowledgement that is
  still on its way is of a message that the in-sync set has, as far as the mode promises that; the election is the usual
  one.
- A renewal that the former process sent may arrive after the end of its lease, and begins the lease again: the election
  waits for that as it did before.
- A keeper that has just started, and may have granted a lease that it has no record of, waits for one TTL in any case.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.keeper_messages import LeaseClaim
from raymq.actors.keeper.master_lease import claim_of
from raymq.storage.errors import RayMQError


class ClaimRefused(RayMQError):
    """Raised if the process must not serve as the replica; the message names both sides."""


@dataclass(frozen=True, slots=True)
class ReplicaClaim:
    """The claim of a starting process for its directory.

    Attributes:
        number: the replica that it claims to be.
        record: the identity of its directory, its address, and the nonce that it has just drawn.
        before: the nonces that the directory's earlier starts may have registered; the new one is stored beside them
            before the register is changed, so that a crash in between can be resolved.
        tail_lost: as in `FencedState`.
        is_empty: the directory contains no data: it may replace one that was lost.
    """

    number: int
    record: ReplicaRecord
    before: Collection[str]
    tail_lost: bool = False
    is_empty: bool = False


class ClaimWaits(RayMQError):
    """Raised if the claim may only be made later; the message states why."""


def make_nonce(drawn: str, place: str) -> str:
    """Return the nonce of a process that drew `drawn` and holds the lock at `place`.

    With an empty `place` the nonce names no lock, and proves nothing. The process keeps the `ProcessLock` for as long
    as it might acknowledge anything.
    """
    return f"{drawn}@{place}" if place else drawn


def predecessor_lease(state: GroupState | None, number: int, place: str) -> LeaseClaim | None:
    """Return the lease that the holder of the `ProcessLock` at `place` may end, or None.

    It is the lease of replica `number` as master, if it was given to the process that held this lock before.
    """
    claim = claim_of(state)
    if claim is None or claim.replica != number or not place:
        return None
    return claim if claim.nonce.partition("@")[2] == place else None


def connection_refusal(state: GroupState, number: int, identity: str, nonce: str) -> str | None:
    """Return why the master refuses a connection that claims to be this replica.

    None: it is the registered process. A process that has just made its claim may be newer than the master's copy of
    the register: the master then reads the register, and the replica connects again.
    """
    record = state.replicas.get(number)
    if record is None:
        return f"replica {number} is not registered"
    if record.identity != identity:
        return f"replica {number} has the directory {record.identity} at {record.address}, not {identity}"
    if record.nonce != nonce:
        return f"replica {number} was started by another process, at {record.address}"
    return None


def founding_blocker(state: GroupState | None, number: int) -> str | None:
    """Return why a replica must wait before it makes its claim, or None.

    The first replica that makes its claim is in sync, and may become master with its data. Only replica 1 may have
    messages by then, those of a group that had one copy: so it must be the first.
    """
    if state is None:
        return "the group has not been created yet"
    if not state.replicas and number != 1:
        return "replica 1 of the group has not started yet"
    return None


def apply_claim(state: GroupState, claim: ReplicaClaim, *, registered_answers: bool) -> GroupState:
    """Return the state with the claim made, for a compare-and-set in the register.

    A restarted master is no longer master: its log may be shorter than what others have confirmed, so it takes part in
    the next election like every replica. A member whose tail may be lost leaves the in-sync set. An empty directory
    takes the place of one that is lost, once the lost one is no longer in sync.

    Args:
        registered_answers: whether the registered process has answered a request at its address.

    Raises:
        ClaimRefused: it is another directory, or a copy, or one that is in use.
        ClaimWaits: it is empty, and the one before it is in sync, according to the register.
    """
    number, record = claim.number, claim.record
    known = state.replicas.get(number)
    if known is None:
        return state.with_replica(number, record)
    if known.nonce == record.nonce:
        return state
    if known.identity != record.identity and claim.is_empty and not registered_answers:
        if number in state.in_sync:
            raise ClaimWaits(
                f"replica {number} is in sync with a directory at {known.address}, but this directory is empty"
            )
        return state.with_replica(number, record)
    if known.identity != record.identity:
        raise ClaimRefused(
            f"replica {number} has the directory {known.identity} at {known.address}, not {record.identity}",
            remedy="start with an empty directory under a free replica number, or remove the replica first",
        )
    if known.nonce not in claim.before:
        raise ClaimRefused(
            f"replica {number} was started at {known.address} after this directory was copied or backed up",
            remedy="use the directory that was started last; a copy may lack messages that were acknowledged",
        )
    if registered_answers:
        raise ClaimRefused(f"replica {number} runs at {known.address}: two processes have copies of one directory")
    after = state.start_election() if state.master == number else state
    after = after.with_replica(number, record)
    rest = after.in_sync - {number}
    if claim.tail_lost and rest and number in after.in_sync:
        after = replace(after, in_sync=rest, set_epoch=after.set_epoch + 1)
    return after
