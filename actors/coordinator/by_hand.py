"""An election that an operator asks for, at once, by whoever is asked: it is a coordinator for so long.

A master that serves hands over: it is sealed, by which it leaves its office and gives its lease back, and so are the
others. Where the wanted one has all that anybody in sync has, it becomes master; else nothing that was acknowledged is
given up for it, and the one that has most becomes master (again).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.election import NoWinner, SealedState, Winner, choose
from raymq.actors.coordinator.asking import ReplicaQuestions
from raymq.actors.coordinator.watching import WAS_OLDER, Change, later_epoch
from raymq.actors.errors import ElectionFailed, InvalidInput, broker_not_found
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterHeld
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.messages import Registered
from raymq.actors.keeper.register import Register
from raymq.storage.errors import number_text

_PAUSE_SECONDS: Final = 0.1
#: A replica that is sealed may wait for what is under way to it.
_SEAL_SECONDS: Final = 2.0
#: How long it is waited for that who was elected serves.
_SERVES_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class ByHand:
    """What became of it.

    Attributes:
        state: the register's value with the master.
        warning: what may be lost by the choice; empty: nothing.
        changed: whether there is another master, or epoch, than before.
    """

    state: GroupState
    warning: str = ""
    changed: bool = True


async def elect_by_hand(
    register: Register,
    questions: ReplicaQuestions,
    group: str,
    clock: Callable[[], float],
    *,
    designated: int | None = None,
    unclean: bool = False,
    seconds: float = 10.0,
) -> ByHand:
    """See to it that the group has a master, the designated replica if one is named.

    Without one, a master that serves stays.

    Args:
        designated: the register's number of the wanted replica.
        unclean: where no replica in sync is there: the operator takes the loss of what nobody who was reached has.

    Raises:
        BrokerGroupNotFound: the register knows no such group.
        InvalidInput: the group has no such replica.
        ElectionFailed: nobody may become master, or not the wanted one, and why; the group has the master that it had,
            or none.
        RegisterUnavailable: no majority of the keepers could be asked.
    """
    deadline = clock() + seconds
    while True:
        try:
            _check_known(group, await register.read(group))  # to settle it would make it one that the register has
            now = await register.settle(group)
            found = await _attempt(register, questions, group, now, designated, unclean=unclean)
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
    questions: ReplicaQuestions,
    group: str,
    now: Registered,
    designated: int | None,
    *,
    unclean: bool,
) -> ByHand:
    state = _check_known(group, now)
    if designated is not None and designated not in state.replicas:
        raise InvalidInput("replica", f"one of {sorted(state.replicas)} by its number in the register", designated)
    master = state.master
    if master is not None and designated in (None, master):
        told = (await questions.status({master: state.replicas[master]})).get(master)
        if told is not None and told.serves and told.nonce == state.replicas[master].nonce:
            return ByHand(state, changed=False)
    if master is not None and designated is not None and designated != master:
        if designated not in state.in_sync and not unclean:
            raise ElectionFailed(f"{group}: replica {designated} is not in sync; in sync are {sorted(state.in_sync)}")
        if not await questions.status({designated: state.replicas[designated]}):
            raise ElectionFailed(f"{group}: replica {designated} does not answer")
    after = state if master is None and state.epoch else state.electing()
    if master is not None:
        handed_over = await questions.seal({master: state.replicas[master]}, after.epoch, _SEAL_SECONDS)
        if not handed_over:
            # Nobody knows what it does: nothing of its epoch may change any more before the others are asked.
            now = await register.change(group, now, after)
    now, after, sealed = await _sealed(register, questions, group, now, after, unclean=unclean)
    winner, refusal = _choose(after, sealed, designated, unclean=unclean)
    if isinstance(winner, NoWinner):
        if after != now.value:
            await register.change(group, now, after)
        raise ElectionFailed(f"{group}: {winner.reason}")
    elected = await register.change(group, now, after.elected(winner.replica, winner.in_sync, may_lack=winner.may_lack))
    assert isinstance(elected.value, GroupState)
    await _until_it_serves(questions, elected.value, winner.replica)
    if refusal is not None:
        raise ElectionFailed(f"{group}: {refusal}; replica {winner.replica} is master of epoch {after.epoch}")
    was_older = f"{WAS_OLDER}: what nobody who was reached has is lost" if after.loss_epoch == after.epoch else ""
    return ByHand(elected.value, winner.warning or was_older)


async def _sealed(
    register: Register, questions: ReplicaQuestions, group: str, now: Registered, after: GroupState, *, unclean: bool
) -> tuple[Registered, GroupState, Mapping[int, SealedState]]:
    """The register's value, the state that the election is of, and what replicas have that are sealed for it."""
    sealed, heard = await questions.seal_and_status(after.replicas, after.epoch, _SEAL_SECONDS)
    later = later_epoch(after, sealed, heard, unclean=unclean)
    if later is None:
        return now, after, sealed
    if isinstance(later, Change):
        changed = await register.change(group, now, later.after)
        return changed, later.after, await questions.seal(after.replicas, later.after.epoch, _SEAL_SECONDS)
    if await register.read(group) != now:
        raise RegisterConflict(f"{group}: somebody else was faster")
    raise ElectionFailed(f"{group}: {later.trouble}")


async def _until_it_serves(questions: ReplicaQuestions, state: GroupState, master: int) -> None:
    """For a while: it opens its store first. Whether it does in the end is the coordinator's to see."""
    asked = {master: state.replicas[master]}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SERVES_SECONDS):
            while True:
                told = (await questions.status(asked)).get(master)
                if told is not None and told.serves:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)


def _choose(
    state: GroupState, sealed: Mapping[int, SealedState], designated: int | None, *, unclean: bool
) -> tuple[Winner | NoWinner, str | None]:
    """The winner, and why it is not the wanted one."""
    best = choose(state, sealed, unclean=unclean)
    if designated is None or isinstance(best, NoWinner) or best.replica == designated:
        return best, None
    wanted = choose(state, sealed, designated=designated, unclean=unclean)
    if isinstance(wanted, NoWinner):
        return best, wanted.reason
    has, most = sealed[designated], sealed[best.replica]
    if (has.epoch, has.end.offset) < (most.epoch, most.end.offset):  # a master that leaves tidies its files: no loss
        lacks = (
            f"replica {designated} has the log up to {has.end.offset}, replica {best.replica} up to {most.end.offset}"
        )
        return (wanted, None) if unclean else (best, lacks)
    return wanted, None
