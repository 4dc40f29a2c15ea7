"""`raymq cluster ...`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from raymq.client import Admin
from raymq.cluster import bootstrap
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import plain, print_fields, print_json, print_rows


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
    mq = bootstrap.start(brokers, root, finder.namespace, name_servers=count, port=port, config=config)
    print_fields({"namespace": finder.namespace, "name_servers": mq.name_servers}, as_json=as_json)
    if mq.owns_ray:
        click.echo("Ray runs in this process: Ctrl-C stops the cluster.", err=True)
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        try:
            stopped.wait()
        except KeyboardInterrupt:
            pass
        finally:
            mq.stop()
    mq.close()


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
    with bootstrap.connect(finder.namespace, finder.address) as mq:
        with Admin(mq) as admin:
            brokers = [broker.name for broker in admin.cluster_info().brokers]
        if not dry_run:
            mq.stop(timeout)
    print_fields({"namespace": finder.namespace, "brokers": brokers, "stopped": not dry_run}, as_json=as_json)
