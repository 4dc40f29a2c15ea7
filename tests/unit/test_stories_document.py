"""Test that docs/stories.md names only alerts, metrics and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from raymq.cluster.cli import main_group

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "stories.md").read_text(encoding="utf-8")
#: In a code block or between backquotes: a command with its subcommand, if it has any.
COMMAND = re.compile(r"(?:\$ |`)raymq ([a-z]+)(?: ([a-z]+))?")


def test_alerts_exist() -> None:
    rules = yaml.safe_load((ROOT / "configs" / "grafana" / "raymq_alerts.yaml").read_text(encoding="utf-8"))
    known = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    named = set(re.findall(r"`(RayMQ\w+)`", TEXT))
    assert named
    assert named <= known


def test_metrics_are_documented() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("metrics.md", "metrics_clients.md"))
    named = set(re.findall(r"`((?:raymq|rocketmq)_[a-z_]*[a-z])(?:\{[^`]*)?`", TEXT)) - {"ray_raymq_"}
    assert len(named) > 10
    assert {name for name in named if name not in pages} == set()


@pytest.mark.parametrize(("command", "subcommand"), sorted(set(COMMAND.findall(TEXT))))
def test_commands_exist(command: str, subcommand: str) -> None:
    found = main_group.commands[command]
    if isinstance(found, click.Group) and subcommand:
        assert subcommand in found.commands


def test_each_story_has_a_test_of_its_own() -> None:
    stories = re.findall(r"^## \d+ ", TEXT, re.MULTILINE)
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "integration").glob("test_stories_*")
    )
    assert len(stories) == len(re.findall(r"^def test_", tests, re.MULTILINE)) == 10
