"""`raymq store ...`: works on a directory, needs no cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from raymq.cluster.cli_context import json_option
from raymq.cluster.output import print_fields
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
