"""Start, find and stop a cluster; the `raymq` command."""

from __future__ import annotations

from raymq.actors.protocol import Tls
from raymq.cluster.bootstrap import Cluster, connect, start, stop

__all__ = ["Cluster", "Tls", "connect", "start", "stop"]
