"""The commands `raymq store ...`, for a directory and its backups, without a cluster."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from raymq.client.plain_data import to_plain_data
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.cli_store_content import dump, inspect
from raymq.cluster.output import console, print_fields, print_json, print_rows
from raymq.cluster.store_backup import backup_store, list_backups, restore_store, verify_backups
from raymq.storage.backup.backup_progress import BackupProgress
from raymq.storage.directory_format import check_format, read_format
from raymq.storage.errors import InvalidInput, RayMQError
from raymq.storage.state_opening import read_tables
from raymq.storage.store_paths import StorePaths
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.verify import verify

_directory = click.argument("directory", type=click.Path(path_type=Path))


@click.group("store")
def store_commands() -> None:
    """Look into, back up, restore, verify and repair a broker's store directory."""


for _command in (inspect, dump):
    store_commands.add_command(_command)


@store_commands.command("backup")
@_directory
@click.argument("target")
@click.option("--name", help="Name of the backup; by default the current time.")
@click.option("--keep", type=int, help="Keep this many backups and delete older ones.")
@json_option
@click.pass_obj
def backup(finder: Finder, directory: Path, target: str, name: str | None, keep: int | None, as_json: bool) -> None:
    """Back up DIRECTORY, whose broker may run, to TARGET.

    TARGET is a path, or an address such as s3://bucket/folder. Files that TARGET has already are not copied again. Each
    broker needs a target of its own.
    """
    with _shown("backing up", as_json) as progress:
        report = backup_store(directory, target, name=name, keep=keep, tls=finder.tls, progress=progress)
    print_fields(to_plain_data(report), as_json=as_json)


@store_commands.command("backups")
@click.argument("target")
@json_option
def backups(target: str, as_json: bool) -> None:
    """List the backups in TARGET, the oldest first."""
    rows = [
        {
            "name": each.name,
            "made_at": each.made_at_ms / 1000,
            "broker": each.broker.name,
            "cluster": each.broker.cluster,
            "log_begin": each.log_begin,
            "log_end": each.log_end,
            "files": len(each.files),
            "bytes": each.stored_bytes,
        }
        for each in list_backups(target)
    ]
    print_rows(rows, as_json=as_json, empty="no backup")


@store_commands.command("restore")
@click.argument("target")
@_directory
@click.option("--at", help="The name of the backup; by default the newest one.")
@click.option("--new-address", is_flag=True, help="Use another port than the original, which may run on this machine.")
@click.option("--dry-run", is_flag=True, help="Check that the backup is complete, and change nothing.")
@json_option
def restore(target: str, directory: Path, at: str | None, new_address: bool, dry_run: bool, as_json: bool) -> None:
    """Restore a backup of TARGET into DIRECTORY, which must be empty."""
    with _shown("restoring", as_json) as progress:
        report = restore_store(target, directory, at=at, new_address=new_address, dry_run=dry_run, progress=progress)
    print_fields(to_plain_data(report), as_json=as_json)


@store_commands.command("verify")
@click.argument("directory")
@click.option("--at", help="In a folder of backups: verify only the one of this name.")
@json_option
def verify_store(directory: str, at: str | None, as_json: bool) -> None:
    """Check the CRC of every record in DIRECTORY, or every byte of its backups.

    The exit code is 1 if a record or a byte is bad. For a store the command also shows the format of RayMQ's own files
    in DIRECTORY, and the RayMQ version that raised it. It changes nothing.
    """
    if at is not None or "://" in directory or _has_backups(Path(directory)):
        _verify_backups(directory, at, as_json)
        return
    report, known = verify(directory), read_format(Path(directory))
    print_fields(
        {
            "format": known.number,
            "written_by": known.written_by,
            "records": report.records,
            "bad_records": report.bad_records,
            "bad": [{"file": file, "offset": offset} for file, offset in report.bad],
        },
        as_json=as_json,
    )
    if report.bad_records:
        sys.exit(1)


@store_commands.command("quarantined")
@_directory
@json_option
def quarantined(directory: Path, as_json: bool) -> None:
    """List the quarantined messages of DIRECTORY, whose broker may run, the oldest first.

    These are stored messages of which no copy could be made, with the reasons; at most the newest 10,000.
    """
    paths = StorePaths(directory)
    if not paths.state_journal.parent.is_dir():
        raise InvalidInput("directory", "a store directory", str(directory))
    check_format(directory)
    rows = [asdict(each) for each in read_tables(paths).quarantined.notes()]
    print_rows(rows, as_json=as_json, empty="no message was quarantined")


def _has_backups(directory: Path) -> bool:
    return (directory / "backups").is_dir() and not (directory / "commitlog").is_dir()


def _verify_backups(target: str, at: str | None, as_json: bool) -> None:
    with _shown("reading", as_json) as progress:
        report = verify_backups(target, at=at, progress=progress)
    bad = [asdict(each) for each in report.bad]
    if as_json:
        print_json(to_plain_data(report))
    else:
        print_fields({"backups": report.backups, "files": report.files, "bytes": report.bytes}, as_json=False)
        print_rows(bad, as_json=False, empty="every byte is as it was written")
    if bad:
        sys.exit(1)


@contextlib.contextmanager
def _shown(what: str, as_json: bool) -> Iterator[Callable[[BackupProgress], None]]:
    """Show a progress bar on stderr if it is a terminal; yield its update function."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    is_shown = not as_json and sys.stderr.isatty()
    with Bars(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console(sys.stderr, quiet=not is_shown),
        disable=not is_shown,
        transient=True,
    ) as bars:
        task = bars.add_task(what, total=None)
        yield lambda state: bars.update(task, total=state.total_bytes, completed=state.done_bytes)


@store_commands.command("repair")
@_directory
@click.option("--dry-run", is_flag=True, help="Show what would be rebuilt, and from what; change nothing.")
@click.option("--yes", is_flag=True, help="Confirm the repair.")
@json_option
def repair_store(directory: Path, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Recreate the tables of DIRECTORY that cannot be read, and whose spare copies cannot either.

    Such tables keep a broker from starting (StoreCorrupt): topics.json, consumerOffset.json and the like. In the
    journals of topics and groups the unreadable records are removed. The old files are kept below raymq/damaged/. Stop
    the broker before.
    """
    broken = find_broken(directory)
    if broken and not dry_run:
        if not yes:
            raise RayMQError(f"add --yes to repair {len(broken)} broken tables")
        broken = repair(directory)
    print_rows([asdict(each) for each in broken], as_json=as_json, empty="every table can be read")
