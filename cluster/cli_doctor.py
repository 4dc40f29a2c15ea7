"""The command `raymq doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.table import Table

from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.doctor.check_result import CheckResult, Severity
from raymq.cluster.output import cell, console, print_json
from raymq.cluster.shell_remedies import in_shell_words

_WORST_FIRST = (Severity.PROBLEM, Severity.NOTE, Severity.FINE)


@click.command("doctor")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder with brokers' directories on this machine, also of brokers that do not run.",
)
@click.option("--spark", is_flag=True, help="Check for Java even if Spark is not installed.")
@click.option("--no-ray", is_flag=True, help="Use sockets alone: do not check Ray's nodes and actors.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, root: Path | None, spark: bool, no_ray: bool, as_json: bool) -> None:
    """Report problems of this machine and the cluster, and how to fix them.

    The exit code is 1 if there is a problem; notes are not problems. If no cluster runs, only this machine is checked.
    """
    from raymq.cluster.doctor.diagnosis import DiagnosisTarget, diagnose

    finder: Finder = ctx.obj
    is_named = finder.name_servers is not None or finder.address is not None
    patient = DiagnosisTarget(finder.connect, is_named, finder.namespace, finder.address, root, spark, not no_ray)
    if not as_json and sys.stderr.isatty():
        click.echo("checking; with Ray this takes some seconds", err=True)
    found = sorted(diagnose(patient), key=lambda each: _WORST_FIRST.index(each.severity))
    if as_json:
        print_json([each.fields() for each in found])
    else:
        _print(found)
    if not all(each.ok for each in found):
        sys.exit(1)


def _print(found: list[CheckResult]) -> None:
    for each in (each for each in found if each.severity is not Severity.FINE):
        click.echo(f"{each.severity.value}: {each.check}{f' ({each.where})' if each.where else ''}: {each.found}")
        if each.remedy:
            click.echo(f"    {in_shell_words(each.remedy)}")
    table = Table.grid(padding=(0, 2))
    for each in (each for each in found if each.severity is Severity.FINE):
        table.add_row(*map(cell, ("fine", each.check, each.found, each.where)))
    console().print(table)
