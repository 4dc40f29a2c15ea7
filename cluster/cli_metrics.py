"""The commands `raymq metrics ...`: where metrics are, and what draws and watches them."""

from __future__ import annotations

from pathlib import Path

import click

from raymq.client import Admin
from raymq.cluster import grafana
from raymq.cluster.cli_context import Rows, admin_rows, json_option
from raymq.cluster.output import print_json

_ray = click.option(
    "--ray/--prometheus",
    default=True,
    show_default=True,
    help="The names on Ray's port, or those on the brokers' own ports.",
)


@click.group("metrics")
def metrics_commands() -> None:
    """Show where metrics are, and give out dashboards and alert rules."""


@metrics_commands.command("list")
@admin_rows("no broker has a port for Prometheus: set metrics: prometheus, or read Ray's metrics port")
def list_addresses(admin: Admin) -> Rows:
    """List the addresses of the brokers' metrics, as targets for Prometheus."""
    brokers = admin.cluster_info().brokers
    return [{"broker": each.name, "replica": each.replica, "metrics": each.metrics} for each in brokers if each.metrics]


@metrics_commands.command("grafana")
@_ray
@click.option("--install", is_flag=True, help="Write them where Ray's dashboard has its own, on the head.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Write them into this folder.")
@json_option
def dashboards(ray: bool, install: bool, output: Path | None, as_json: bool) -> None:
    """Write the Grafana dashboards: one of the cluster, one of a group.

    Without --install or --output the names of the files are shown.
    """
    texts = grafana.dashboards(ray=ray)
    if install:
        output = grafana.ray_dashboard_folder()
    paths = [Path(name) for name in texts] if output is None else grafana.write(output, texts)
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        click.echo(path if output is not None else f"{path} (add --install or --output FOLDER)")


@metrics_commands.command("alerts")
@_ray
def alerts(ray: bool) -> None:
    """Print alert rules for Prometheus, as YAML."""
    click.echo(grafana.alerts(ray=ray), nl=False)
