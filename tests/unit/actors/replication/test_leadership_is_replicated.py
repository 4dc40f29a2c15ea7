"""Test that a master with too few in-sync replicas still shares its replicated decisions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.protocol import SendStatus

END = StreamPosition(100, 7)


class LeadershipStub:
    """Stand in for a leadership with too few in-sync replicas.

    `settled` reports that after its wait, and the state is confirmed once it ships.
    """

    is_sync = True

    def __init__(self, *, ships: bool) -> None:
        self.in_sync = SimpleNamespace(confirmed=StreamPosition(100, 6))
        self.waited = 0
        self._ships = ships

    def check_master(self) -> None:
        pass

    def _changed_here(self) -> None:
        if self._ships:
            asyncio.get_running_loop().call_soon(self._confirm)

    def _confirm(self) -> None:
        self.in_sync.confirmed = END

    async def settled(self, _: StreamPosition) -> SendStatus:
        self.waited += 1
        if not self._ships:
            self._confirm()
        return SendStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("ships", [True, False])
async def test_is_replicated_with_too_few_in_sync_replicas(*, ships: bool) -> None:
    """Guard against a three-second wait and a refusal during a pop."""
    leadership = LeadershipStub(ships=ships)
    assert await Leadership.is_replicated(cast("Any", leadership), END)
    assert leadership.waited == (not ships)
