"""`raymq config`: what may be set, and whether a configuration file is right."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from raymq.cluster.cli_context import json_option
from raymq.cluster.cluster_config import SETTINGS, ClusterConfig
from raymq.cluster.output import print_json

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("config")
def config_commands() -> None:
    """Show the settings of a cluster, and check a configuration file."""


@config_commands.command("show")
@click.argument("file", type=_FILE, required=False)
@click.option("--changed", is_flag=True, help="Show only the settings of FILE that differ from their defaults.")
@json_option
def show(file: Path | None, changed: bool, as_json: bool) -> None:
    """Show every setting with its value in FILE, or its default.

    For each setting the unit, range and meaning are shown, and when a change takes effect.
    """
    values = ClusterConfig.settings(file)
    rows = [
        {
            "setting": setting.name,
            "value": values[setting.name],
            "default": setting.default,
            "unit": setting.unit,
            "allowed": setting.allowed,
            "takes_effect": setting.effect.value,
            "description": setting.description,
        }
        for setting in SETTINGS.values()
        if not changed or values[setting.name] != setting.default
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        value = _as_yaml(row["value"])
        note = "" if row["value"] == row["default"] else f"   # default: {_as_yaml(row['default'])}"
        click.echo(f"{row['setting']}: {value}{note}")
        unit = f", {row['unit']}" if row["unit"] else ""
        words = f"{row['description']} Allowed: {row['allowed']}{unit}. A change takes effect {row['takes_effect']}."
        click.echo(click.wrap_text(words, 110, "    ", "    "))


@config_commands.command("check")
@click.argument("file", type=_FILE)
@json_option
def check(file: Path, as_json: bool) -> None:
    """Name everything that is wrong with FILE; exit code 1 if anything is."""
    found = [
        {
            "setting": str(error.actual) if error.field == "config" else error.field,
            "allowed": error.limit,
            "given": _plain(error.actual),
            "remedy": error.remedy,
        }
        for error in ClusterConfig.problems(file)
    ]
    if as_json:
        print_json({"file": str(file), "problems": found})
    elif found:
        for each in found:
            remedy = f" ({each['remedy']})" if each["remedy"] else ""
            click.echo(f"{each['setting']}: allowed is {each['allowed']}; the file has {each['given']!r}{remedy}")
    else:
        values = ClusterConfig.settings(file)
        changed = sum(values[name] != setting.default for name, setting in SETTINGS.items())
        click.echo(f"{file}: fine, {changed} of {len(SETTINGS)} settings differ from their defaults")
    if found:
        sys.exit(1)


def _plain(value: Any) -> Any:
    """Return a JSON scalar as it is, and other values as short text."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return repr(value)[:200]


def _as_yaml(value: Any) -> str:
    """Return a value as a configuration file has it, on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=1 << 20).removesuffix("\n...\n").strip()
