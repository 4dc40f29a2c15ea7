"""The programs of examples/ run, and print what they say that they print."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raymq import cluster
from tests.integration.conftest import Services

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def printed(docstring: str) -> str:
    """What a program's docstring says that it prints."""
    return textwrap.dedent(docstring.partition("It prints:\n")[2])


def test_they_print_what_they_say(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) >= 5
    for path in EXAMPLES:
        program = runpy.run_path(str(path))
        with cluster.connect(name_servers=services.name_server.address) as mq:
            program["main"](mq)
        assert capsys.readouterr().out == printed(program["__doc__"]), path.name
        assert len(path.read_text("utf-8").splitlines()) <= 60


@pytest.mark.soak
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_is_a_program(path: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == printed(runpy.run_path(str(path))["__doc__"])
