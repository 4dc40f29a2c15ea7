"""Test `make test-nightly`: a result line for each part, even if others fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import nightly
from tests.nightly import Part, main


def part(name: str, code: str, **options: object) -> Part:
    return Part(name, (sys.executable, "-c", code), **options)  # type: ignore[arg-type]


GOOD = part("good", "print('3 passed, 1 skipped, 2 deselected in 4.50s (0:00:04)')")
BAD = part("bad", "print('1 failed, 3 passed in 4.50s'); raise SystemExit(1)")
LATER = part("later", "print('no counts')")


def output_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_each_part_has_a_line_even_after_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--logs", str(tmp_path)], [GOOD, BAD, LATER]) == 1
    assert output_lines(capsys) == [
        f"good: passed, 3 passed, 1 skipped, 2 deselected, 0.0 min, {tmp_path / 'good.log'}",
        f"bad: FAILED, 1 failed, 3 passed, 0.0 min, {tmp_path / 'bad.log'}",
        f"later: passed, 0.0 min, {tmp_path / 'later.log'}",
    ]
    assert "no counts" in (tmp_path / "later.log").read_text()


def test_single_part_can_be_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--logs", str(tmp_path), "good"], [GOOD, BAD]) == 0
    assert [line.partition(":")[0] for line in output_lines(capsys)] == ["good"]
    with pytest.raises(SystemExit) as caught:
        main(["god"], [GOOD])
    assert caught.value.code == 2


def test_part_without_its_tools_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"
    needs = [part("a", code, tools=("no-such-tool", "sh")), part("b", code, reason="no root")]
    assert main(["--logs", str(tmp_path)], needs) == 0
    assert output_lines(capsys) == ["a: not run, no-such-tool not in PATH", "b: not run, no root"]
    assert not made.exists()


def test_hanging_part_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('still running: it')"
    assert main(["--logs", str(tmp_path)], [part("hangs", code, hours=2 / 3600), GOOD]) == 1
    first, second = output_lines(capsys)
    assert first.startswith("hangs: FAILED, not done after 0.000555556 h, ")
    assert second.startswith("good: passed")
    assert "still running: it" in (tmp_path / "hangs.log").read_text()


def test_arguments_of_make_do_not_reach_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "ARGS"):
        monkeypatch.setenv(name, "good")
    assert (
        main(["--logs", str(tmp_path)], [part("good", "import os; print({'MAKEFLAGS', 'ARGS'} & os.environ.keys())")])
        == 0
    )
    assert (tmp_path / "good.log").read_text() == "set()\n"


def test_all_expected_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = {line.partition(":")[0] for line in output_lines(capsys)}
    assert names >= {"numpy", "sweeps", "fuzz", "long", "soak", "chaos", "spark4"}
    assert names >= {"interop-java", "interop-go", "rocketmq", "rayup"}
    assert names >= {"python3.11", "python3.12", "python3.13"} - {f"python3.{sys.version_info[1]}"}
    assert nightly.ROOT.joinpath("Makefile").exists()
