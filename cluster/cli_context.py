"""What every command shares: how the cluster is found, and the --json option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from raymq.actors.protocol import Tls

if TYPE_CHECKING:
    from raymq.cluster.bootstrap import Cluster

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


@dataclass(frozen=True, slots=True)
class Finder:
    """How to reach the cluster: by addresses if they are given, else through Ray."""

    name_servers: str | None
    namespace: str
    address: str
    tls: Tls | None
    connect_with: Callable[[Finder], Cluster]

    def refuse_addresses(self, command: str) -> None:
        """End with wrong usage where the cluster is named by addresses, and `command` needs its Ray."""
        if self.name_servers:
            raise click.UsageError(
                f"{command} works through Ray, not through name servers: leave out --name-servers "
                "(RAYMQ_NAME_SERVERS), and run it where the cluster's Ray is"
            )

    def connect(self) -> Cluster:
        """A connection; use it as a context manager."""
        return self.connect_with(self)
