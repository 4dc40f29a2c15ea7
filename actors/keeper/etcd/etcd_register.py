"""`Register` on etcd: a key for each group's state, and one, which etcd deletes in time, for its master's lease.

    <prefix>/states/<group>   {"change": "8f..", "version": 3, "state": {...}}
    <prefix>/leases/<group>   {"replica": 1, "nonce": "91..", "epoch": 7}
    <prefix>/cluster          the cluster whose register it is, as a random text, which each transaction compares

A change is a transaction that compares the state's mod_revision; one that takes a master away also compares that there
is no lease key. A renewal is a new lease of etcd's, to which a transaction attaches the lease key if the state is still
the one in which the claimant is master.

What settles a state writes the same again, which gives it another mod_revision: so no transaction of before, wherever
it waits, can hold any more. A group that is not there yet gets a state of null for that.

etcd's own way to prolong a lease is not used. It is answered by the leader alone, out of its memory; one that was
paused, and has a successor, does not know that: it prolongs leases that have ended, and has others revoked that its
successor has prolonged (etcd's issue 15247, repaired at the end of 2023; Debian 12's etcd is older). Granting and
attaching are decided by a majority, and a lease that nobody prolongs ends no earlier than its time after it was
granted, whichever server looks. Three writes a renewal is what that costs: fine for some hundred groups.

A lease key that hangs on no lease is a copy, of who has moved the keys from another etcd: nobody has that lease.

etcd keeps what each key was before until it is told to forget that, which by default nobody does, and takes no write
any more once it has 2 GiB: a group's renewals are 25 MB a day. So masters have it forget what is older than an hour.

etcd's shortest lease is 1.5 times its election time-out, 2 s with its defaults. With a longer one a master that has
died is succeeded later, and the register is as safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from raymq.actors.keeper.errors import RegisterConflict, RegisterHeld, RegisterUnavailable, RegisterUnknown
from raymq.actors.keeper.etcd.etcd_gateway import (
    OTHER_FORM,
    EtcdFailed,
    EtcdGateway,
    EtcdValue,
    delete,
    get,
    is_unchanged,
    is_value,
    put,
)
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.leases import LEASE_SECONDS, RENEWAL_SECONDS, claim_of
from raymq.actors.keeper.messages import NOTHING, LeaseClaim, Registered
from raymq.storage.errors import InvalidInput

#: A renewal meets at most so many changes of the state that leave its master where he is.
_RENEWALS: Final = 3
#: What a key was before is forgotten after so long, or twice that.
_HISTORY_SECONDS: Final = 3600.0
#: Of a group that was settled before it had a state.
_NO_STATE: Final = b'{"state":null}'


class EtcdRegister:
    """`Register` on an etcd cluster. Coroutines of one event loop; `close` ends it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        cluster: str | None = None,
    ) -> None:
        """`endpoints`, `tls`: as `EtcdGateway`. `prefix`: of all keys, such as "/raymq/<cluster>".

        `cluster`: whose register it has to be (`is_of`), at each call; None: whosever it is.
        """
        self._etcd = EtcdGateway(endpoints, tls)
        self._states = f"{prefix}/states/"
        self._leases = f"{prefix}/leases/"
        self._cluster = f"{prefix}/cluster"
        self._whose = None if cluster is None else cluster.encode()
        #: The state in which a claim was found right last, by group: the claim, and the state's mod_revision.
        self._right: dict[str, tuple[LeaseClaim, int]] = {}
        #: A revision that is as old as the history that is kept; 0: none is known.
        self._old_revision = 0
        self._forgets_at = 0.0
        self._forgetting: asyncio.Task[None] | None = None

    async def read(self, group: str) -> Registered:
        """As `Register.read`."""
        return _registered(await self._state(group))

    async def settle(self, group: str) -> Registered:
        """As `Register.settle`."""
        key = self._states + group
        standing = await self._state(group)
        for _ in range(_RENEWALS):
            revision, value = (0, _NO_STATE) if standing is None else (standing.mod_revision, standing.value)
            try:
                is_written, found = await self._transact([is_unchanged(key, revision)], [put(key, value)], [get(key)])
            except EtcdFailed as error:
                raise RegisterUnavailable(f"{group}: {error}") from error
            if is_written:
                return _registered(standing)
            standing = found[0]
        raise RegisterUnavailable(f"{group}: its state keeps changing")

    async def change(self, group: str, before: Registered, after: GroupState) -> Registered:
        """As `Register.change`."""
        after.encode()
        state_key, lease_key = self._states + group, self._leases + group
        moves = claim_of(before.value) != claim_of(after)
        look = [get(state_key), get(lease_key)]
        try:
            _, (standing, lease) = await self._transact([], look, [])
        except EtcdFailed as error:
            raise RegisterUnavailable(f"{group}: {error}") from error
        _check(group, before, _registered(standing), lease if moves else None)
        made = Registered(before.version + 1, f"{secrets.randbelow(1 << 62):x}", after)
        compare = [is_unchanged(state_key, 0 if standing is None else standing.mod_revision)]
        compare += [is_unchanged(lease_key, 0 if lease is None else lease.mod_revision)] if moves else []
        try:
            is_made, found = await self._transact(compare, [put(state_key, _encoded(made))], look)
        except EtcdFailed as error:
            failed = RegisterUnknown if error.may_be_done else RegisterUnavailable
            raise failed(f"{group}: {error}") from error
        if is_made:
            return made
        standing, lease = found
        _check(group, before, _registered(standing), lease if moves else None)
        # What was in the way has gone in between: a lease that has just ended.
        raise RegisterHeld(f"{group}: the master's lease has not ended", RENEWAL_SECONDS)

    async def groups(self) -> Sequence[str]:
        """As `Register.groups`."""
        try:
            await self._transact([], [get(self._cluster)], [])
            names = sorted(await self._etcd.keys(self._states))
        except EtcdFailed as error:
            raise RegisterUnavailable(str(error)) from error
        return [name for name in names if (await self.read(name)).value is not None]

    async def is_of(self, cluster: str, *, is_new: bool) -> bool:
        """Whether it is the register of that cluster; of nobody's it becomes that of one that is new.

        Raises:
            RegisterUnavailable: etcd does not say.
        """
        look = [get(self._cluster)]
        found = [put(self._cluster, cluster.encode())] if is_new else []
        try:
            is_nobodys, told = await self._etcd.transact([is_unchanged(self._cluster, 0)], found, look)
        except EtcdFailed as error:
            raise RegisterUnavailable(str(error)) from error
        if is_nobodys:
            return is_new
        return told[0] is not None and told[0].value == cluster.encode()

    async def renew(self, group: str, claim: LeaseClaim) -> float:
        """As `Register.renew`."""
        try:
            seconds = await self._renew(group, claim)
        except EtcdFailed as error:
            raise RegisterUnavailable(f"{group}: {error}") from error
        if time.monotonic() >= self._forgets_at:
            self._forgets_at = time.monotonic() + _HISTORY_SECONDS
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_history(group))
        return seconds

    async def release(self, group: str, claim: LeaseClaim) -> None:
        """As `Register.release`."""
        key = self._leases + group
        with contextlib.suppress(EtcdFailed):
            await self._transact([is_value(key, _claimed(claim))], [delete(key)], [])

    async def _forget_history(self, group: str) -> None:
        with contextlib.suppress(EtcdFailed):  # another master may have done so
            _, (lease,) = await self._transact([], [get(self._leases + group)], [])
            old, self._old_revision = self._old_revision, 0 if lease is None else lease.mod_revision
            if old:
                await self._etcd.compact(old)

    def close(self) -> None:
        """End the connections."""
        self._etcd.close()

    async def _transact(
        self,
        compare: Sequence[Mapping[str, Any]],
        then: Sequence[Mapping[str, Any]],
        otherwise: Sequence[Mapping[str, Any]],
    ) -> tuple[bool, list[EtcdValue | None]]:
        """As `EtcdGateway.transact`, where it is the register of this cluster. EtcdFailed also where it is not."""
        if self._whose is None:
            return await self._etcd.transact(compare, then, otherwise)
        is_ours, owner = is_value(self._cluster, self._whose), get(self._cluster)
        holds, found = await self._etcd.transact([is_ours, *compare], then, [*otherwise, owner])
        if not holds and ((told := found.pop()) is None or told.value != self._whose):
            raise EtcdFailed("the etcd that answers has no register of this cluster", may_be_done=False)
        return holds, found

    async def _renew(self, group: str, claim: LeaseClaim) -> float:
        state_key = self._states + group
        right = self._right.get(group)
        revision = right[1] if right is not None and right[0] == claim else None
        if revision is None:
            revision = self._checked(group, claim, await self._state(group))
        # Granted after the call began, so that it ends no earlier than its seconds after that.
        lease, seconds = await self._etcd.grant(math.ceil(LEASE_SECONDS))
        for _ in range(_RENEWALS):
            attach = put(self._leases + group, _claimed(claim), lease)
            is_given, found = await self._transact([is_unchanged(state_key, revision)], [attach], [get(state_key)])
            if is_given:
                self._right[group] = claim, revision
                return min(float(seconds), LEASE_SECONDS)
            revision = self._checked(group, claim, found[0])
        raise RegisterUnavailable(f"{group}: its state keeps changing")

    def _checked(self, group: str, claim: LeaseClaim, standing: EtcdValue | None) -> int:
        """The mod_revision of a state in which the claimant is master; RegisterConflict."""
        if standing is None or claim_of(_registered(standing).value) != claim:
            self._right.pop(group, None)
            raise RegisterConflict(f"{group}: {claim.replica} is not the master of epoch {claim.epoch}")
        return standing.mod_revision

    async def _state(self, group: str) -> EtcdValue | None:
        try:
            _, (standing,) = await self._transact([], [get(self._states + group)], [])
        except EtcdFailed as error:
            raise RegisterUnavailable(f"{group}: {error}") from error
        return standing


def _check(group: str, before: Registered, standing: Registered, lease: EtcdValue | None) -> None:
    """Raise what forbids a change from `before`."""
    if (standing.version, standing.change) != (before.version, before.change):
        raise RegisterConflict(f"{group}: version {standing.version} stands, not {before.version}")
    if lease is not None and lease.ends:
        raise RegisterHeld(f"{group}: the master's lease has not ended", RENEWAL_SECONDS)


def _encoded(entry: Registered) -> bytes:
    assert isinstance(entry.value, GroupState)
    told = {"change": entry.change, "version": entry.version, "state": entry.value.to_json()}
    return json.dumps(told, separators=(",", ":")).encode()


def _registered(found: EtcdValue | None) -> Registered:
    """The value; RegisterUnavailable if somebody else has written there what is none."""
    if found is None or found.value == _NO_STATE:
        return NOTHING
    try:
        raw = json.loads(found.value)
        version = raw.get("version", found.version)  # RayMQ 0.1 did not write it
        return Registered(int(version), str(raw["change"]), GroupState.from_json(raw["state"]))
    except (*OTHER_FORM, InvalidInput) as error:
        raise RegisterUnavailable(f"what stands in etcd is no state of a group: {error}") from error


def _claimed(claim: LeaseClaim) -> bytes:
    return json.dumps(asdict(claim), separators=(",", ":"), sort_keys=True).encode()
