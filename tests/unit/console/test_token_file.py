"""Test that the token's file is made for its user alone, and refused where others can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from raymq.client import InvalidInput
from raymq.console.token_file import read_or_make_token


def test_token_file_is_made_with_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_or_make_token(path)
    assert len(token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_token(path) == token, "the next start has the same token"


def test_token_of_the_user_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  my own token of the house \n")
    path.chmod(0o600)
    assert read_or_make_token(path) == "my own token of the house"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("my own token of the house")
    path.chmod(mode)
    with pytest.raises(InvalidInput, match="chmod 600"):
        read_or_make_token(path)


@pytest.mark.parametrize("content", ["", "short", "x" * 5_000])
def test_bad_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match="characters"):
        read_or_make_token(path)


def test_unusable_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="token_file"):
        read_or_make_token(tmp_path / "missing" / "token")
    with pytest.raises(InvalidInput, match="token_file"):
        read_or_make_token(tmp_path)
