"""The command `raymq health`, for probes and scripts."""

from __future__ import annotations

import sys

import click

from raymq.client import Admin
from raymq.client.plain_data import to_plain_data
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import print_json, print_rows


@click.command("health")
@click.option("--ready", is_flag=True, help="Check that clients can work: every broker group has a serving master.")
@click.option("--brokers", type=click.IntRange(1), help="With --ready: so many broker groups have to be there.")
@json_option
@click.pass_obj
def health(finder: Finder, ready: bool, brokers: int | None, as_json: bool) -> None:
    """Check that every process of the cluster answers, or with --ready that clients can work.

    The exit code is 1 if a check fails. `raymq doctor` looks for causes.
    """
    if brokers is not None and not ready:
        raise click.UsageError("--brokers needs --ready")
    with finder.connect() as mq, Admin(mq) as admin:
        found = admin.health(ready=ready, brokers=brokers)
    if as_json:
        print_json(found)
    else:
        rows = [{**to_plain_data(each), "ok": "yes" if each.ok else "NO"} for each in found.checks]
        print_rows(rows, as_json=False, empty="nothing was checked")
    if not found.ok:
        sys.exit(1)
