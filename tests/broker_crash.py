"""How a broker within this process dies as one that is killed: nothing is saved, the abort file stays."""

from __future__ import annotations

from raymq.actors.broker.service import BrokerService


async def disconnect_broker(broker: BrokerService) -> None:
    """It does nothing any more and is not reached any more; its store is as it was. On the broker's loop."""
    broker._cancel_tasks()
    await broker._server.stop()
    await broker._pool.close()


async def die(broker: BrokerService) -> None:
    """Its store is left as it is, too, and only the lock of its directory is let go."""
    await disconnect_broker(broker)
    broker.store._flusher.stop()
    broker.store._abandon()
    broker.core.timers.log.close()
    broker._producer_history.close()
