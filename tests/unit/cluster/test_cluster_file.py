"""Test the file with the addresses of this user's clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.cluster import cluster_file


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))


def test_forget_keeps_the_file_of_another_cluster_of_that_name() -> None:
    """Cover a regression: one cluster's end removed the file of another with its name.

    Each had its own Ray; afterwards no command in another terminal found the second cluster.
    """
    cluster_file.save("raymq", ["127.0.0.1:1"], "127.0.0.2:1111", None)
    cluster_file.save("raymq", ["127.0.0.1:2"], "127.0.0.2:2222", None)
    cluster_file.forget("raymq", "127.0.0.2:1111")
    known = cluster_file.load("raymq")
    assert known is not None
    assert known.ray_address == "127.0.0.2:2222"
    cluster_file.forget("raymq", "127.0.0.2:2222")
    assert cluster_file.load("raymq") is None


def test_cluster_file_without_a_ray_address_is_forgotten() -> None:
    cluster_file.save("raymq", ["127.0.0.1:1"], None, None)
    cluster_file.forget("raymq", "127.0.0.2:1111")
    assert cluster_file.load("raymq") is None


@pytest.mark.parametrize("tls", [{"ca_file": 1}, {"check_host": "no"}, {"of": "another version"}, [], "files"])
def test_cluster_file_with_invalid_tls_is_ignored(tls: object) -> None:
    """Cover a regression: a file of another form ended each command with a traceback."""
    cluster_file.save("raymq", ["127.0.0.1:1"], None, None)
    (note,) = (path for path in cluster_file.lock_file("raymq").parent.glob("*.json"))
    note.write_text(json.dumps({"name_servers": ["127.0.0.1:1"], "tls": tls}))
    assert cluster_file.load("raymq") is None
