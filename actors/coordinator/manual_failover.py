"""Run an election on an operator's request, at once, in the process that was asked.

That process acts as a coordinator for the time of the election. A master that serves hands over: it is fenced, so that
it steps down and releases its lease, and the other replicas are fenced as well. If the designated replica has all
records that the replicas in sync have, it becomes master. Else no acknowledged message is given up for it, and the
replica with the longest log becomes master (again).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.election import FencedState, NoWinner, Winner, choose_master
from raymq.actors.coordinator.failover_monitor import STALE_REGISTER, UpdateRegister, later_epoch
from raymq.actors.coordinator.replica_client import ReplicaClient
from raymq.actors.errors import ElectionFailed, InvalidInput, broker_not_found
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterHeld
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.register import Register
from raymq.storage.errors import number_text

_PAUSE_SECONDS: Final = 0.1
#: Time-out of fencing a replica, which may wait for requests in progress.
_SEAL_SECONDS: Final = 2.0
#: The most seconds to wait until the new master serves.
_SERVES_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class ManualElection:
    """The result of a manual election.

    Attributes:
        state: the register's value with the master.
        warning: the messages that the choice may lose; empty: none.
        changed: whether the master or the epoch has changed.
    """

    state: GroupState
    warning: str = ""
    changed: bool = True


async def elect_manually(
    register: Register,
    replica_client: ReplicaClient,
    group: str,
    clock: Callable[[], float],
    *,
    designated: int | None = None,
    unclean: bool = False,
    seconds: float = 10.0,
) -> ManualElection:
    """Ensure that the group has a master, the designated replica if there is one.

    Without a designated replica, a master that serves stays.

    Args:
        designated: the number of the designated replica in the register.
        unclean: if no replica in sync can be reached, the operator accepts the loss of messages that no replica which
            was reached has.

    Raises:
        BrokerGroupNotFound: the register has no such group.
        InvalidInput: the group has no such replica.
        ElectionFailed: no replica may become master, or not the designated one; the message says why. The group keeps
            its former master, or has none.
        RegisterUnavailable: no majority of the keepers could be reached.
    """
    deadline = clock() + seconds
    while True:
        try:
            _check_known(group, await register.read(group))  # `settle` would create a value for an unknown group
            now = await register.settle(group)
            found = await _attempt(register, replica_client, group, now, designated, unclean=unclean)
        except RegisterHeld as held:
            reason, pause = str(held), min(max(held.wait_seconds, 0.02), 0.3)
        except RegisterConflict as conflict:
            reason, pause = str(conflict), 0.0
        except RegisterError as error:
            reason, pause = str(error), _PAUSE_SECONDS
        else:
            return found
        if clock() + pause > deadline:
            raise ElectionFailed(f"{group}: no election within {number_text(seconds, 3)} s: {reason}")
        await asyncio.sleep(pause)


def _check_known(group: str, now: Registered) -> GroupState:
    if not isinstance(now.value, GroupState) or not now.value.replicas:
        raise broker_not_found(group, "the register")
    return now.value


async def _attempt(
    register: Register,
    replica_client: ReplicaClient,
    group: str,
    now: Registered,
    designated: int | None,
    *,
    unclean: bool,
) -> ManualElection:
    state = _check_known(group, now)
    if designated is not None and designated not in state.replicas:
        raise InvalidInput("replica", f"one of {sorted(state.replicas)} by its number in the register", designated)
    master = state.master
    if master is not None and designated in (None, master):
        status = (await replica_client.status({master: state.replicas[master]})).get(master)
        if status is not None and status.serves and status.nonce == state.replicas[master].nonce:
            return ManualElection(state, changed=False)
    if master is not None and designated is not None and designated != master:
        if designated not in state.in_sync and not unclean:
            raise ElectionFailed(f"{group}: replica {designated} is not in sync; in sync are {sorted(state.in_sync)}")
        if not await replica_client.status({designated: state.replicas[designated]}):
            raise ElectionFailed(f"{group}: replica {designated} does not answer")
    after = state if master is None and state.epoch else state.start_election()
    if master is not None:
        handed_over = await replica_client.fence({master: state.replicas[master]}, after.epoch, _SEAL_SECONDS)
        if not handed_over:
            # The master's state is unknown: end its epoch in the register before the other replicas are fenced.
            now = await register.change(group, now, after)
    now, after, fenced = await _fenced(register, replica_client, group, now, after, unclean=unclean)
    winner, refusal = _choose(after, fenced, designated, unclean=unclean)
    if isinstance(winner, NoWinner):
        if after != now.value:
            await register.change(group, now, after)
        raise ElectionFailed(f"{group}: {winner.reason}")
    elected = await register.change(group, now, after.elected(winner.replica, winner.in_sync, may_lack=winner.may_lack))
    assert isinstance(elected.value, GroupState)
    await _until_it_serves(replica_client, elected.value, winner.replica)
    if refusal is not None:
        raise ElectionFailed(f"{group}: {refusal}; replica {winner.replica} is master of epoch {after.epoch}")
    was_older = (
        f"{STALE_REGISTER}: messages that no reached replica has are lost" if after.loss_epoch == after.epoch else ""
    )
    return ManualElection(elected.value, winner.warning or was_older)


async def _fenced(
    register: Register, replica_client: ReplicaClient, group: str, now: Registered, after: GroupState, *, unclean: bool
) -> tuple[Registered, GroupState, Mapping[int, FencedState]]:
    """Fence the replicas for the election.

    Return the register's value, the state of the election, and the answers of the fenced replicas.
    """
    fenced, statuses = await replica_client.fence_and_status(after.replicas, after.epoch, _SEAL_SECONDS)
    later = later_epoch(after, fenced, statuses, unclean=unclean)
    if later is None:
        return now, after, fenced
    if isinstance(later, UpdateRegister):
        changed = await register.change(group, now, later.after)
        return changed, later.after, await replica_client.fence(after.replicas, later.after.epoch, _SEAL_SECONDS)
    if await register.read(group) != now:
        raise RegisterConflict(f"{group}: another process has changed the register")
    raise ElectionFailed(f"{group}: {later.trouble}")


async def _until_it_serves(replica_client: ReplicaClient, state: GroupState, master: int) -> None:
    """Wait a few seconds until the new master serves; it opens its store first.

    If it does not serve in time, the coordinator elects another one later.
    """
    replicas = {master: state.replicas[master]}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SERVES_SECONDS):
            while True:
                status = (await replica_client.status(replicas)).get(master)
                if status is not None and status.serves:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)


def _choose(
    state: GroupState, fenced: Mapping[int, FencedState], designated: int | None, *, unclean: bool
) -> tuple[Winner | NoWinner, str | None]:
    """Return the winner, and why it is not the designated replica."""
    best = choose_master(state, fenced, unclean=unclean)
    if designated is None or isinstance(best, NoWinner) or best.replica == designated:
        return best, None
    winner = choose_master(state, fenced, designated=designated, unclean=unclean)
    if isinstance(winner, NoWinner):
        return best, winner.reason
    has, most = fenced[designated], fenced[best.replica]
    if (has.epoch, has.end.offset) < (
        most.epoch,
        most.end.offset,
    ):  # only the log counts: a leaving master still tidies its files
        lacks = (
            f"replica {designated} has the log up to {has.end.offset}, replica {best.replica} up to {most.end.offset}"
        )
        return (winner, None) if unclean else (best, lacks)
    return winner, None
