"""Test `raymq demo` with the bundled data, other data, a killed broker and invalid input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.demo_records import JSON_LINES_COUNTS, json_lines

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]

RAYMQ = [sys.executable, "-c", "from raymq.cluster.cli import main; main()"]
#: The bundled flights: 12,208 rows, 123 of which have an NA in a number column.
ROWS, DIRTY = 12_208, 123


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RAYMQ, "demo", *arguments], capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.long
def test_demo_survives_broker_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        [*RAYMQ, "demo", "--data", str(data)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        lines = []
        for line in demo.stdout:
            lines.append(line)
            broker = re.search(r"broker-a pid (\d+)", line)
            if broker:
                # By then the stores are open and the first rows are being sent.
                threading.Timer(0.5, os.kill, (int(broker[1]), signal.SIGKILL)).start()
        errors = demo.stderr.read()
    shown = "".join(lines)
    assert (demo.returncode, errors) == (0, ""), shown + errors
    counted = dict(re.findall(r"^\s+(\w[\w ()-]+?)\s{2,}(\d+)", shown, re.MULTILINE))
    assert int(counted["rows of the input"]) == int(counted["events read by Spark"]) == ROWS
    assert int(counted["events streamed by Spark"]) == ROWS
    assert int(counted["in the dead-letter queue"]) == int(counted["dirty rows"]) == DIRTY
    assert int(counted["taken by the listener"]) == ROWS - DIRTY
    assert "every row accounted for" in shown
    epochs = json.loads((data / "broker-a" / "raymq" / "broker.json").read_text())["epoch"]
    assert epochs == 2, "the broker was not killed, or was killed before it ran"
    assert _processes_with(str(data)) == []


@pytest.mark.soak  # starts another Ray and Spark for 500 rows; test_spark_bridge.py tests this separately
def test_demo_reads_json_lines(tmp_path: Path) -> None:
    path = json_lines(tmp_path)
    ended = run_demo("--input", str(path), "--key", "id", "--tag", "state", "--measure", "amount", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) == 1
    assert json.loads(ended.stdout) == JSON_LINES_COUNTS


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("name", "content", "arguments"),
    [
        ("missing.csv", None, []),
        ("empty.csv", "", []),
        ("data.csv", "a,b\n1,2\n", ["--key", "c"]),
        ("data.csv", "a,b\n1,2\n", ["--tag", "c"]),
        ("data.parquet", "no parquet", []),
    ],
)
def test_invalid_input_prints_one_error_line(
    tmp_path: Path, name: str, content: str | None, arguments: list[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    ended = run_demo("--input", str(path), *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.splitlines()) == 1


def _processes_with(text: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if text in line:
            found.append(line)
    return found
