"""`raymq cluster ...`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from raymq.actors.naming import is_name_server_name
from raymq.client import Admin
from raymq.cluster import bootstrap
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import plain, print_fields, print_json, print_rows

_LOOK_SECONDS: Final = 0.1
#: How often it is looked whether the cluster was stopped from elsewhere.
_GONE_SECONDS: Final = 1.0


@click.group("cluster")
def cluster_commands() -> None:
    """Start, look at and stop a cluster."""


@cluster_commands.command("start")
@click.option("--brokers", default=2, show_default=True)
@click.option("--root", type=click.Path(path_type=Path), default=Path("data"), show_default=True)
@click.option("--name-servers", "count", default=1, show_default=True, help="How many name servers.")
@click.option("--port", default=0, show_default="any free one", help="The first name server's port.")
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="YAML settings; see configs/.")
@json_option
@click.pass_obj
def start_cluster(
    finder: Finder, brokers: int, root: Path, count: int, port: int, config: Path | None, as_json: bool
) -> None:
    """Start a cluster on the Ray that runs here; where none runs, on one of its own until Ctrl-C."""
    finder.refuse_addresses("cluster start")
    options: dict[str, Any] = {"name_servers": count, "port": port, "config": config}

    def live(asked: threading.Event) -> bool:
        mq = bootstrap.start(brokers, root, finder.namespace, **options)
        try:
            if is_up := not asked.is_set():
                print_fields({"namespace": finder.namespace, "name_servers": mq.name_servers}, as_json=as_json)
                sys.stdout.flush()
            if mq.owns_ray:
                if is_up:
                    click.echo("Ray runs in this process: Ctrl-C stops the cluster.", err=True)
                _hold(finder.namespace, asked)
        finally:
            if mq.owns_ray or asked.is_set():
                mq.stop()
            mq.close()
        return is_up

    _uninterrupted(live)


def _uninterrupted(live: Callable[[threading.Event], bool]) -> None:
    """Run `live` on a thread of its own, where no signal interrupts Ray's code, which would end in a SIGSEGV.

    The thread lives as long as what it starts: Ray's processes end with the thread that made them. SIGINT and SIGTERM
    set the event that `live` is given. One that comes before `live` has done what it was called for, which it says by
    True, is the process's exit code, as of any that is ended by it.
    """
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # Ray asks for it once, when it is imported
    asked, ended_by = threading.Event(), 0

    def ask(which: int, _: object) -> None:
        nonlocal ended_by
        ended_by = ended_by or which
        asked.set()

    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, ask)
    with ThreadPoolExecutor(1, "raymq-cluster") as executor:
        living = executor.submit(live, asked)
        while not living.done() and not asked.wait(_LOOK_SECONDS):
            pass
        if not living.done():
            click.echo("stopping", err=True)
        if not living.result():
            sys.exit(128 + ended_by)


def _hold(namespace: str, asked: threading.Event) -> None:
    """Until a signal comes, or somebody else has stopped the cluster."""
    from raymq.cluster.launching import names

    while not asked.wait(_GONE_SECONDS) and any(map(is_name_server_name, names(namespace))):
        pass


@cluster_commands.command("status")
@json_option
@click.pass_obj
def cluster_status(finder: Finder, as_json: bool) -> None:
    """The brokers, name servers and scheduler as they answer now."""
    with finder.connect() as mq, Admin(mq) as admin:
        info = admin.cluster_info()
    if as_json:
        print_json(info)
        return
    shown = ("name", "role", "state", "epoch", "address", "pid", "store", "disk_ratio")
    rows = [{name: getattr(broker, name) for name in shown} for broker in info.brokers]
    print_rows(rows, as_json=False, empty="no broker")
    print_rows([plain(server) for server in info.name_servers], as_json=False, empty="no name server")
    print_rows([{"scheduler_pid": info.scheduler.pid, "lateness": info.scheduler.lateness}], as_json=False, empty="")


@cluster_commands.command("stop")
@click.option("--timeout", default=30.0, show_default=True, help="Seconds to end cleanly.")
@click.option("--dry-run", is_flag=True, help="Say what would be stopped, and change nothing.")
@json_option
@click.pass_obj
def stop_cluster(finder: Finder, timeout: float, dry_run: bool, as_json: bool) -> None:
    """End every actor of the cluster cleanly. The data stay."""
    finder.refuse_addresses("cluster stop")
    brokers = bootstrap.running(finder.namespace, finder.address or "auto")
    if not dry_run:
        bootstrap.stop(finder.namespace, finder.address or "auto", timeout)
    print_fields({"namespace": finder.namespace, "brokers": brokers, "stopped": not dry_run}, as_json=as_json)
