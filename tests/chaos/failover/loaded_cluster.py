"""A cluster under load, as who breaks it and who judges it sees it: its clients, and whether all is well."""

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
    """What all of them have.

    Attributes:
        folder: where its files are.
        groups: the names of its broker groups.
        load: the clients; None: they do not work now.
        replicas: how many copies there are of a group.
        fewest_copies: how many copies there surely are of what was acknowledged.
        reigned: what the register said; nothing where there is none.
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
        """Where clients are told to look."""

    @property
    def inside_clients(self) -> Sequence[str]:
        """What a command begins with that is to run where the clients are."""
        return ()

    @property
    def reigned(self) -> list[Reigned]:
        return []

    @property
    def history(self) -> Path:
        """What the clients write."""
        return self.folder / "clients.history"

    def start_load(self, seed: int, pause: float) -> None:
        """Let clients work."""
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
        """When clients were told last that something is stored in that group."""
        assert self.load is not None
        return float(self.load.said.get("last_ok", {}).get(group, 0.0))

    def stop_load(self, drain_seconds: float) -> None:
        """Wait until consumers have all that was acknowledged, at most for so long."""
        assert self.load is not None
        self.load.tell("quiet")
        self.load.tell(f"drain {drain_seconds}")
        code = self.load.stop(drain_seconds + 180.0)
        if code:
            raise AssertionError(f"the clients ended with {code}; see {self.load.log}")
        self.load = None

    def is_well(self, since: float) -> bool:
        """Whether clients were served after a moment, and all that should be there is."""
        return not self.why_not_well(since)

    def why_not_well(self, since: float) -> str:
        """What is in the way of that; "" if nothing is."""
        silent = [group for group in self.groups if self.last_ok(group) <= since]
        return f"nothing was acknowledged by {', '.join(silent)}" if silent else ""

    @abstractmethod
    def tell_where(self) -> None:
        """Have each server write into its log where its threads and tasks are."""

    @abstractmethod
    def mend(self) -> None:
        """Undo whatever may be left of any fault."""
