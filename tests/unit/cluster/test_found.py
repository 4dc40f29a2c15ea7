"""Where this user's clusters are noted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.cluster import cluster_file


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))


def test_the_end_of_a_cluster_takes_no_note_of_another_one_of_its_name() -> None:
    """Two programs had each one called "raymq" in a Ray of its own; when the first one stopped, no command of another
    terminal found the second one.
    """
    cluster_file.save("raymq", ["127.0.0.1:1"], "127.0.0.2:1111", None)
    cluster_file.save("raymq", ["127.0.0.1:2"], "127.0.0.2:2222", None)
    cluster_file.forget("raymq", "127.0.0.2:1111")
    known = cluster_file.load("raymq")
    assert known is not None
    assert known.ray_address == "127.0.0.2:2222"
    cluster_file.forget("raymq", "127.0.0.2:2222")
    assert cluster_file.load("raymq") is None


def test_a_note_that_does_not_say_where_its_ray_is_goes_with_the_cluster() -> None:
    cluster_file.save("raymq", ["127.0.0.1:1"], None, None)
    cluster_file.forget("raymq", "127.0.0.2:1111")
    assert cluster_file.load("raymq") is None


@pytest.mark.parametrize("tls", [{"ca_file": 1}, {"check_host": "no"}, {"of": "another version"}, [], "files"])
def test_a_note_whose_tls_is_none_is_no_note(tls: object) -> None:
    """One of another form ended each command with a traceback."""
    cluster_file.save("raymq", ["127.0.0.1:1"], None, None)
    (note,) = (path for path in cluster_file.lock_file("raymq").parent.glob("*.json"))
    note.write_text(json.dumps({"name_servers": ["127.0.0.1:1"], "tls": tls}))
    assert cluster_file.load("raymq") is None
