"""Start a broker of one copy, for tests that look into what serves its clients."""

from __future__ import annotations

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.broker.service import BrokerService
from raymq.actors.protocol import BrokerSpec


async def start_leader(spec: BrokerSpec, node_id: str = "node") -> LeaderService:
    """Start a broker, and return its leader's service, whose `stop` stops all of it."""
    return (await BrokerService.start(spec, node_id)).leader
