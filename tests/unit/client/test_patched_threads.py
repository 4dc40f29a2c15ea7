"""Test connecting after gevent has patched modules that an event loop needs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from raymq.client import Connection, InvalidInput


@pytest.mark.parametrize(
    ("patched", "is_refused"),
    [
        ((), False),
        (("socket", "ssl"), False),
        (("threading",), True),
        (("select",), True),
        (("thread", "select"), True),
    ],
)
def test_connection_refuses_patched_threads_or_select(
    patched: tuple[str, ...], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(is_module_patched=lambda name: name in patched)
    monkeypatch.setitem(sys.modules, "gevent.monkey", fake)  # type: ignore[arg-type]
    if not is_refused:
        Connection(["h:1"]).close()
        return
    with pytest.raises(InvalidInput, match=r"monkey\.patch_all\(thread=False, select=False\)") as caught:
        Connection(["h:1"])
    assert all(name in str(caught.value) for name in patched)


def test_connection_works_without_gevent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gevent.monkey", raising=False)
    Connection(["h:1"]).close()
