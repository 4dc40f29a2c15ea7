"""`raymq store ...`: works on a directory, needs no cluster."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from raymq.cluster.cli_context import json_option
from raymq.cluster.output import print_fields, print_rows
from raymq.storage.errors import InvalidInput
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.verify import verify


@click.group("store")
def store_commands() -> None:
    """Look into a broker's store directory."""


@store_commands.command("verify")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def verify_store(directory: Path, as_json: bool) -> None:
    """Read every record of DIRECTORY and check its CRC; exit code 1 if one is bad. Changes nothing."""
    report = verify(directory)
    print_fields(
        {
            "records": report.records,
            "bad_records": report.bad_records,
            "bad": [{"file": file, "offset": offset} for file, offset in report.bad],
        },
        as_json=as_json,
    )
    if report.bad_records:
        sys.exit(1)


@store_commands.command("repair")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be made anew, and of what; change nothing.")
@click.option("--yes", is_flag=True, help="Really do it.")
@json_option
def repair_store(directory: Path, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Make the tables of DIRECTORY anew that cannot be read, and neither can their spare copies.

    They keep a broker from starting (StoreCorrupt): topics.json, consumerOffset.json and the like. What was there is
    kept below raymq/damaged/. Stop the broker before.
    """
    broken = find_broken(directory)
    if broken and not dry_run:
        if not yes:
            raise InvalidInput("store repair", "--yes, or --dry-run to look first", f"{len(broken)} broken tables")
        broken = repair(directory)
    print_rows([asdict(each) for each in broken], as_json=as_json, empty="every table can be read")
