"""Crash a broker within this process as a kill does: nothing is saved, the abort file stays."""

from __future__ import annotations

from raymq.actors.broker.leader_service import LeaderService


async def disconnect_broker(broker: LeaderService) -> None:
    """Stop a broker's tasks and connections, without closing its store; call on its loop."""
    broker._cancel_tasks()
    await broker._server.stop()
    await broker._pool.close()


async def crash_broker(broker: LeaderService) -> None:
    """Disconnect a broker and abandon its store: only the lock of its directory is released."""
    await disconnect_broker(broker)
    broker.store._flusher.stop()
    broker.store._abandon()
    broker.core.timers.log.close()
