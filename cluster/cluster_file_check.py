"""Verify that the recorded addresses of a cluster still belong to it.

`raymq.cluster.cluster_file` records them. Ports are reused: after a cluster was killed, another cluster's name server
may use the same port. So each name server is queried for the registered brokers, whose cluster name is the namespace.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.protocol import Tls
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.route_answers import read_view
from raymq.actors.wire.frame import Command
from raymq.client import Connection
from raymq.cluster.cluster_file import ClusterEndpoint

_REQUEST_SECONDS: Final = 2.0


def verified_name_servers(namespace: str, known: ClusterEndpoint, tls: Tls | None) -> list[str]:
    """Return the recorded name servers that belong to the cluster in `namespace`.

    Only brokers of this cluster are registered with them. A name server without brokers, or one that does not answer,
    is not returned, since it may belong to another cluster.
    """
    try:
        mq = Connection(known.name_servers, tls=tls)
    except InvalidInput:  # The file has no addresses, or an invalid one.
        return []
    with mq:
        return mq.run(_ask_all(mq, namespace))


async def _ask_all(mq: Connection, namespace: str) -> list[str]:
    async def clusters_at(address: str) -> set[str]:
        try:
            answer = await mq.pool.request(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), _REQUEST_SECONDS)
            return {cluster for cluster, _ in read_view(answer.body).brokers.values()}
        except RayMQError:
            return set()

    found = await asyncio.gather(*map(clusters_at, mq.name_servers))
    return [address for address, clusters in zip(mq.name_servers, found, strict=True) if clusters == {namespace}]
