"""Whether what this user has noted of a cluster (`raymq.cluster.found`) still leads there, and not to another one.

Ports are taken again: where a cluster that was killed had its name server another one may have its own by now. So it is
asked whose brokers are registered with it; a cluster has the name of its namespace.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.protocol import Tls
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.route import read_view
from raymq.actors.wire.frame import Command
from raymq.client import Connection
from raymq.cluster.found import FoundCluster

_ASK_SECONDS: Final = 2.0


def name_servers_of(namespace: str, known: FoundCluster, tls: Tls | None) -> list[str]:
    """Those of the noted name servers that are the cluster's in `namespace`: with them its brokers, and no others, are
    registered. One that knows no brokers, or does not answer, may be anybody's.
    """
    try:
        mq = Connection(known.name_servers, tls=tls)
    except InvalidInput:  # nothing was noted, or what is no address
        return []
    with mq:
        return mq.run(_ask_all(mq, namespace))


async def _ask_all(mq: Connection, namespace: str) -> list[str]:
    async def clusters_at(address: str) -> set[str]:
        try:
            answer = await mq.pool.request(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), _ASK_SECONDS)
            return {cluster for cluster, _ in read_view(answer.body).brokers.values()}
        except RayMQError:
            return set()

    found = await asyncio.gather(*map(clusters_at, mq.name_servers))
    return [address for address, clusters in zip(mq.name_servers, found, strict=True) if clusters == {namespace}]
