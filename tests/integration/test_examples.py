"""Test that the programs of examples/ print what their docstrings say."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path

import pytest

from raymq import cluster
from tests.integration.conftest import Services
from tests.program import output_of

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(120)]

ALL = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
#: test_spark_stream.py runs the others.
EXAMPLES = [path for path in ALL if "spark_bridge" not in path.read_text("utf-8")]
#: The others start a Ray if none runs: test_examples_run_as_programs runs them.
WITHOUT_RAY = [path for path in EXAMPLES if "import ray" not in path.read_text("utf-8")]

#: Consumers log this when a listener fails, as in some examples.
WARNINGS = "(consumer of )?group [a-z]+|Traceback |  |ValueError: no such account"


def documented_output(docstring: str) -> str:
    """Return the output that a program's docstring describes."""
    return textwrap.dedent(docstring.partition("It prints:\n")[2])


def test_examples_print_documented_output(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(WITHOUT_RAY) >= 5
    for path in WITHOUT_RAY:
        program = runpy.run_path(str(path))
        with cluster.connect(name_servers=services.name_server.address) as mq:
            program["main"](mq)
        assert capsys.readouterr().out == documented_output(program["__doc__"]), path.name
        assert len(path.read_text("utf-8").splitlines()) <= 60


@pytest.mark.soak
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_as_programs(path: Path, tmp_path: Path) -> None:
    output = output_of(str(path), directory=tmp_path, warnings=WARNINGS)
    assert output == documented_output(runpy.run_path(str(path))["__doc__"])
