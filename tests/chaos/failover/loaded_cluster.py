"""The interface of a cluster under load for faults and checks: its clients and its health."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.failover.hosts import Process
from tests.chaos.failover.recorded import Reigned

_LOAD: Final = Path(__file__).with_name("load.py")


class LoadedCluster(ABC):
    """The common parts of all clusters.

    Attributes:
        folder: the folder of its files.
        groups: the names of its broker groups.
        load: the clients; None: not running.
        replicas: how many copies there are of a group.
        fewest_copies: the minimum number of copies of an acknowledged message.
        reigned: the states of the register; empty without one.
    """

    replicas: int = 1
    fewest_copies: int = 1

    def __init__(self, folder: Path, groups: Sequence[str]) -> None:
        self.folder = folder
        self.groups = list(groups)
        self.load: Process | None = None

    @property
    @abstractmethod
    def name_servers(self) -> list[str]:
        """Return the addresses of the name servers."""

    @property
    def inside_clients(self) -> Sequence[str]:
        """Return the prefix of a command that runs on the clients' host."""
        return ()

    @property
    def reigned(self) -> list[Reigned]:
        return []

    @property
    def history(self) -> Path:
        """Return the file of the clients' history."""
        return self.folder / "clients.history"

    def start_load(self, seed: int, pause: float) -> None:
        """Start the clients."""
        arguments = [";".join(self.name_servers), str(self.history), str(seed), str(pause)]
        log = self.folder / "logs" / "clients.log"
        with log.open("ab") as errors:
            made = subprocess.Popen(
                [*self.inside_clients, sys.executable, str(_LOAD), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.load = Process(made, log)
        self.load.await_first_word(120.0)

    def last_ok(self, group: str) -> float:
        """Return when clients last got an acknowledgement from that group."""
        assert self.load is not None
        return float(self.load.said.get("last_ok", {}).get(group, 0.0))

    def stop_load(self, drain_seconds: float) -> None:
        """Wait until consumers have everything acknowledged, at most for so long."""
        assert self.load is not None
        self.load.tell("quiet")
        self.load.tell(f"drain {drain_seconds}")
        code = self.load.stop(drain_seconds + 180.0)
        if code:
            raise AssertionError(f"the clients ended with {code}; see {self.load.log}")
        self.load = None

    def is_well(self, since: float) -> bool:
        """Check whether clients were served after a moment, and everything is running."""
        return not self.why_not_well(since)

    def why_not_well(self, since: float) -> str:
        """Return what prevents that; "" if nothing does."""
        silent = [group for group in self.groups if self.last_ok(group) <= since]
        return f"nothing was acknowledged by {', '.join(silent)}" if silent else ""

    @abstractmethod
    def tell_where(self) -> None:
        """Have each server log the stacks of its threads and tasks."""

    @abstractmethod
    def mend(self) -> None:
        """Undo what is left of any fault."""
