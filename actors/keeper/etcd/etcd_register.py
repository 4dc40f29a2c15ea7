"""`Register` on etcd: one key for each group's state, and one for its master's lease.

    <prefix>/states/<group>   {"change": "8f..", "version": 3, "state": {...}}
    <prefix>/leases/<group>   {"replica": 1, "nonce": "91..", "epoch": 7}
    <prefix>/cluster          a random text that identifies the register's cluster; each transaction compares it

etcd deletes the lease key when the lease ends.

A change is a transaction that compares the state's mod_revision. A change of the master also compares that there is no
lease key. A renewal grants a new etcd lease, and a transaction attaches the lease key to it if the claimant is still
master in the current state.

`settle` writes the same state again, which gives it another mod_revision. So no earlier transaction, wherever it is
delayed, can succeed any more. A group without a state gets a state of null for that.

etcd's own keep-alive is not used. Only etcd's leader answers it, from memory. A leader that was paused and has a
successor does not know that: it extends leases that have ended, and revokes leases that its successor has extended
(etcd's issue 15247, fixed at the end of 2023; Debian 12's etcd is older). A majority decides grants and attachments,
and a lease without keep-alive ends no earlier than its TTL after it was granted, whichever server checks. This costs
three writes per renewal, which is acceptable for some hundred groups.

A lease key that is attached to no lease is a copy, made when keys were moved from another etcd. Nobody holds that
lease.

etcd keeps the history of each key until it is compacted, which does not happen by default, and accepts no writes any
more once it has 2 GiB; the renewals of a group are 25 MB a day. So masters compact history that is older than an hour.

etcd's shortest lease is 1.5 times its election time-out, 2 s with its defaults. A longer lease delays the election of a
crashed master's successor, and the register is as safe.
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

import msgspec

from raymq.actors.keeper.errors import RegisterConflict, RegisterHeld, RegisterUnavailable, RegisterUnknown
from raymq.actors.keeper.etcd.etcd_gateway import (
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
from raymq.actors.keeper.keeper_messages import NOTHING, LeaseClaim, Registered
from raymq.actors.keeper.master_lease import LEASE_SECONDS, RENEWAL_SECONDS, claim_of
from raymq.storage import typed_json
from raymq.storage.errors import InvalidInput

#: The most attempts of a renewal or `settle` while the state of the group changes.
_RENEWALS: Final = 3
#: History is deleted after this many seconds, or twice as many.
_HISTORY_SECONDS: Final = 3600.0
#: The value of a group that was settled before it had a state.
_NO_STATE: Final = b'{"state":null}'


class EtcdRegister:
    """`Register` on an etcd cluster.

    Its methods are coroutines of one event loop. Call `close` at the end.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create the register without a connection.

        `endpoints`, `tls`: as `EtcdGateway`. `prefix`: the prefix of all keys, such as "/raymq/<cluster>".

        `cluster`: the cluster that the register has to belong to (`claim_for_cluster`), which each call checks; None:
        no check.
        """
        self._etcd = EtcdGateway(endpoints, tls)
        self._states = f"{prefix}/states/"
        self._leases = f"{prefix}/leases/"
        self._cluster = f"{prefix}/cluster"
        self._whose = None if cluster is None else cluster.encode()
        #: By group: the last claim that was found valid, and the mod_revision of the state in which it was.
        self._right: dict[str, tuple[LeaseClaim, int]] = {}
        #: A revision as old as the history that is kept; 0: unknown.
        self._old_revision = 0
        self._forgets_at = 0.0
        self._forgetting: asyncio.Task[None] | None = None

    async def read(self, group: str) -> Registered:
        """Return a group's value, as `Register.read` describes."""
        return _registered(await self._state(group))

    async def settle(self, group: str) -> Registered:
        """Write a group's value again, as `Register.settle` describes."""
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
        """Replace a group's value, as `Register.change` describes."""
        after.encode()
        state_key, lease_key = self._states + group, self._leases + group
        moves = claim_of(before.value) != claim_of(after)
        look = [get(state_key), get(lease_key)]
        try:
            _, (standing, lease) = await self._transact([], look, [])
        except EtcdFailed as error:
            raise RegisterUnavailable(f"{group}: {error}") from error
        _check(group, before, _registered(standing), lease if moves else None)
        entry = Registered(before.version + 1, f"{secrets.randbelow(1 << 62):x}", after)
        compare = [is_unchanged(state_key, 0 if standing is None else standing.mod_revision)]
        compare += [is_unchanged(lease_key, 0 if lease is None else lease.mod_revision)] if moves else []
        try:
            is_made, found = await self._transact(compare, [put(state_key, _encoded(entry))], look)
        except EtcdFailed as error:
            failed = RegisterUnknown if error.may_be_done else RegisterUnavailable
            raise failed(f"{group}: {error}") from error
        if is_made:
            return entry
        standing, lease = found
        _check(group, before, _registered(standing), lease if moves else None)
        # The lease that blocked the change has ended since.
        raise RegisterHeld(f"{group}: the master's lease has not ended", RENEWAL_SECONDS)

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups, as `Register.groups` describes."""
        try:
            await self._transact([], [get(self._cluster)], [])
            names = sorted(await self._etcd.keys(self._states))
        except EtcdFailed as error:
            raise RegisterUnavailable(str(error)) from error
        return [name for name in names if (await self.read(name)).value is not None]

    async def claim_for_cluster(self, cluster: str, *, is_new: bool) -> bool:
        """Return True if the register belongs to the cluster; claim a free one if `is_new`.

        A register without an owner becomes that of a new cluster.

        Raises:
            RegisterUnavailable: etcd cannot be reached, or has no valid answer.
        """
        look = [get(self._cluster)]
        found = [put(self._cluster, cluster.encode())] if is_new else []
        try:
            is_nobodys, values = await self._etcd.transact([is_unchanged(self._cluster, 0)], found, look)
        except EtcdFailed as error:
            raise RegisterUnavailable(str(error)) from error
        if is_nobodys:
            return is_new
        return values[0] is not None and values[0].value == cluster.encode()

    async def renew(self, group: str, claim: LeaseClaim) -> float:
        """Give or extend a master's lease, as `Register.renew` describes."""
        try:
            seconds = await self._renew(group, claim)
        except EtcdFailed as error:
            raise RegisterUnavailable(f"{group}: {error}") from error
        if time.monotonic() >= self._forgets_at:
            self._forgets_at = time.monotonic() + _HISTORY_SECONDS
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_history(group))
        return seconds

    async def release(self, group: str, claim: LeaseClaim) -> None:
        """End a master's lease, as `Register.release` describes."""
        key = self._leases + group
        with contextlib.suppress(EtcdFailed):
            await self._transact([is_value(key, _claimed(claim))], [delete(key)], [])

    async def _forget_history(self, group: str) -> None:
        with contextlib.suppress(EtcdFailed):  # another master may have compacted it
            _, (lease,) = await self._transact([], [get(self._leases + group)], [])
            old, self._old_revision = self._old_revision, 0 if lease is None else lease.mod_revision
            if old:
                await self._etcd.compact(old)

    def close(self) -> None:
        """Close the connections."""
        self._etcd.close()

    async def _transact(
        self,
        compare: Sequence[Mapping[str, Any]],
        then: Sequence[Mapping[str, Any]],
        otherwise: Sequence[Mapping[str, Any]],
    ) -> tuple[bool, list[EtcdValue | None]]:
        """Run `EtcdGateway.transact` if the register belongs to this cluster, else raise EtcdFailed."""
        if self._whose is None:
            return await self._etcd.transact(compare, then, otherwise)
        is_ours, owner = is_value(self._cluster, self._whose), get(self._cluster)
        holds, found = await self._etcd.transact([is_ours, *compare], then, [*otherwise, owner])
        if not holds and ((standing := found.pop()) is None or standing.value != self._whose):
            raise EtcdFailed("the etcd that answers has no register of this cluster", may_be_done=False)
        return holds, found

    async def _renew(self, group: str, claim: LeaseClaim) -> float:
        state_key = self._states + group
        right = self._right.get(group)
        revision = right[1] if right is not None and right[0] == claim else None
        if revision is None:
            revision = self._checked(group, claim, await self._state(group))
        # The lease is granted after the call began, so it ends no earlier than its seconds after that.
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
        """Return the mod_revision of a state in which the claimant is master.

        Raise RegisterConflict if the claimant is not master in `standing`.
        """
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
    """Raise RegisterConflict or RegisterHeld if a change from `before` is not allowed."""
    if (standing.version, standing.change) != (before.version, before.change):
        raise RegisterConflict(f"{group}: the register has version {standing.version}, not {before.version}")
    if lease is not None and lease.has_lease:
        raise RegisterHeld(f"{group}: the master's lease has not ended", RENEWAL_SECONDS)


class _Value(msgspec.Struct):
    """The value of a group's key."""

    change: str
    version: int
    state: GroupState


def _encoded(entry: Registered) -> bytes:
    assert isinstance(entry.value, GroupState)
    return typed_json.encode(_Value(entry.change, entry.version, entry.value))


def _registered(found: EtcdValue | None) -> Registered:
    """Return the value; raise RegisterUnavailable if it is no state of a group.

    Another program may have written to the key.
    """
    if found is None or found.value == _NO_STATE:
        return NOTHING
    try:
        read = typed_json.decode(found.value, _Value, "value", "the state of a group")
    except InvalidInput as error:
        raise RegisterUnavailable(f"the value in etcd is not the state of a group: {error}") from error
    return Registered(read.version, read.change, read.state)


def _claimed(claim: LeaseClaim) -> bytes:
    return json.dumps(asdict(claim), separators=(",", ":"), sort_keys=True).encode()
