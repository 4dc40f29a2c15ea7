"""The command `raymq console`."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import click

from raymq.client import Connection, RayMQError
from raymq.console.console_extra import missing_package


class ClusterFinder(Protocol):
    """What the `raymq` command hands to its commands."""

    def connect(self) -> AbstractContextManager[Connection]:
        """Return a connection to the cluster that the options name."""


@click.command("console")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8400, show_default=True, help="Listen on this port; 0: a free one."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the token that writes need; made if it does not exist. Without it the console only reads.",
)
@click.option(
    "--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="A further name of this console in browsers."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
@click.pass_obj
def console(
    finder: ClusterFinder, host: str, port: int, token_file: Path | None, allowed_hosts: tuple[str, ...], as_json: bool
) -> None:
    """Serve pages about the cluster for a browser, until Ctrl-C.

    Whoever reaches the port reads every message. On other addresses than loopback, or with an allowed host, the token
    is needed for reads, too.
    """
    if missing := missing_package():
        raise RayMQError(f"the console needs the package {missing}", remedy='install it: pip install "raymq[console]"')
    from raymq.console.console_server import ConsoleSettings, serve_until_signal

    def started(url: str) -> None:
        click.echo(json.dumps({"url": url}) if as_json else f"The console serves {url} (Ctrl-C ends it)")
        if not as_json and token_file is None:
            click.echo("It only reads. To send, redrive and delete, start it with --token-file FILE.")
        elif not as_json:
            click.echo(f"The token for writes is in {token_file}.")

    settings = ConsoleSettings(host, port, token_file, allowed_hosts)
    with finder.connect() as mq:
        asyncio.run(serve_until_signal(mq, settings, started))
