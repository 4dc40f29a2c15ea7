"""The commands `raymq outbox ...`, for a producer's outbox file, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from raymq.client.produce.outbox_file import OutboxBatch, OutboxFile
from raymq.cluster.cli_context import json_option
from raymq.cluster.output import print_fields, print_rows
from raymq.storage.errors import StoreCorrupt

_file = click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
_numbers = click.argument("ids", type=int, nargs=-1)
_all = click.option("--all", "all_", is_flag=True, help="All batches.")


@click.group("outbox")
def outbox_commands() -> None:
    """Show, retry and delete the unsent messages in a producer's outbox FILE."""


@outbox_commands.command("list")
@_file
@json_option
def list_outbox(file: Path, as_json: bool) -> None:
    """Show the batches in FILE, in the order in which they are sent."""
    outbox = OutboxFile(file, read_only=True)
    print_rows([_fields(batch) for batch in outbox.batches()], as_json=as_json, empty="the outbox is empty")
    outbox.close()


def _on_batches(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments of a command on some batches of a file."""
    return _file(_numbers(_all(json_option(command))))


@outbox_commands.command("retry")
@_on_batches
def retry_outbox(file: Path, ids: tuple[int, ...], all_: bool, as_json: bool) -> None:
    """Retry batches that were refused; the producer that has FILE open sends them."""
    outbox = OutboxFile(file)
    done = [number for number in _chosen(outbox, ids, all_) if outbox.retry(number)]
    _finish(outbox, {"retried": done}, ids, done, as_json)


@outbox_commands.command("drop")
@_on_batches
def drop_outbox(file: Path, ids: tuple[int, ...], all_: bool, as_json: bool) -> None:
    """Delete batches: they will never be sent."""
    outbox = OutboxFile(file)
    done = [number for number in _chosen(outbox, ids, all_) if outbox.remove(number)]
    _finish(outbox, {"dropped": done}, ids, done, as_json)


def _chosen(outbox: OutboxFile, ids: tuple[int, ...], all_: bool) -> list[int]:
    if all_ == bool(ids):
        raise click.UsageError("give the ids of batches, or --all")
    return [batch.id for batch in outbox.batches()] if all_ else list(ids)


def _finish(outbox: OutboxFile, fields: dict[str, Any], ids: tuple[int, ...], done: list[int], as_json: bool) -> None:
    missing = sorted(set(ids) - set(done))
    outbox.close()
    print_fields({**fields, "missing": missing}, as_json=as_json)
    if missing:
        sys.exit(1)


def _fields(batch: OutboxBatch) -> dict[str, Any]:
    try:
        messages, state, error = batch.messages(), str(batch.state), batch.error
    except StoreCorrupt as damage:
        messages, state, error = [], "damaged", str(damage)
    return {
        "id": batch.id,
        "topic": batch.topic,
        "messages": len(messages),
        "bytes": len(batch.records),
        "unique_key": messages[0].unique_key if messages else None,
        "state": state,
        "tries": batch.tries,
        "kept_at": batch.kept_at,
        "error": error,
    }
