"""Test that the wheels of `make dist`, installed in an empty environment, run the quick start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]


def blocks(page: str, language: str) -> list[str]:
    """Return a page's code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_wheels_run_the_quick_start_in_an_empty_environment(repository: Path, tmp_path: Path) -> None:
    dist, environment = tmp_path / "dist", tmp_path / "environment"
    make = ["make", "--no-print-directory", "dist", f"DIST={dist}", f"VENV={Path(sys.prefix).name}"]
    subprocess.run(make, cwd=repository, check=True, timeout=300)
    wheels = sorted(path.name for path in dist.glob("*.whl"))
    assert [name.partition("-")[0] for name in wheels] == ["raymq", "raymq_native"]
    assert wheels[0].endswith("-py3-none-any.whl")

    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=120)
    pip = [environment / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *(dist / name for name in wheels)], check=True, timeout=600)

    page = (repository / "docs" / "quickstart.md").read_text("utf-8")
    (tmp_path / "send.py").write_text(blocks(page, "python")[0], "utf-8")
    commands = [line for block in blocks(page, "bash") for line in block.splitlines()]
    started = [line for line in commands if line.startswith(("raymq cluster start", "raymq topic create"))]
    assert len(started) == 2
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY", "VIRTUAL"))}
    clean |= {"PATH": f"{environment / 'bin'}:{clean['PATH']}", "RAYMQ_HOME": str(tmp_path / "home")}

    def run(command: str) -> str:
        shell = ["sh", "-c", command]
        ended = subprocess.run(
            shell, cwd=tmp_path, env=clean, stdout=subprocess.PIPE, text=True, timeout=150, check=True
        )
        return ended.stdout

    try:
        for command in [*started, "python send.py"]:
            output = run(command)
        assert [line.partition(":")[0] for line in output.splitlines()] == [f"order-{number}" for number in range(1, 6)]
        assert '"orders"' in run("raymq message query orders --key order-3 --json")
    finally:
        run("raymq cluster stop")
