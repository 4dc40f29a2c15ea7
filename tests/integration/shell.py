"""Run `raymq` commands in this process, against one cluster."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from raymq.client import Connection
from raymq.cluster.cli import main_group


class Shell:
    """Runs commands against one cluster."""

    def __init__(self, mq: Connection) -> None:
        self._servers = ["--name-servers", ";".join(mq.name_servers)]

    def json(self, *arguments: str) -> Any:
        """Run a command with --json and return the single JSON value on stdout."""
        done = CliRunner().invoke(main_group, [*self._servers, *arguments, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def shown(self, *arguments: str) -> str:
        done = CliRunner().invoke(main_group, [*self._servers, *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def exit_code(self, *arguments: str) -> int:
        return CliRunner().invoke(main_group, [*self._servers, *arguments]).exit_code
