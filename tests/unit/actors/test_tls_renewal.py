"""Test that new connections of servers and clients use replaced certificates without a restart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.protocol import Tls
from raymq.actors.wire import tls
from raymq.actors.wire.blocking_channel import BlockingChannelPool
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.tls import client_context, server_context
from tests.certificates import certificates
from tests.unit.actors.test_connection_pool import ECHO, echo
from tests.wire_server import serving


@pytest.fixture(autouse=True)
def check_files_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "RELOAD_CHECK_SECONDS", 0.0)


def replace_files(old: Tls, new: Tls, *names: str) -> None:
    for name in names:
        shutil.copy(getattr(new, name), getattr(old, name))


async def test_renewed_files_are_used_by_both_sides(tmp_path: Path) -> None:
    """Cover fault 14.21: the files were read once, at the start."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (old, _), (new, _) = certificates(tmp_path / "old"), certificates(tmp_path / "new")
    stays = Tls(ca_file=str(shutil.copy(str(old.ca_file), tmp_path / "old-ca.pem")))
    async with serving({ECHO: echo}, tls=server_context(old)) as (_, address):
        before, follows = ConnectionPool(tls=client_context(stays)), ConnectionPool(tls=client_context(old))
        assert (await before.request(address, Command(ECHO), 5)).code == 0
        replace_files(old, new, "cert_file")  # half of it: the key is still the old one
        again = ConnectionPool(tls=client_context(stays))
        assert (await again.request(address, Command(ECHO), 5)).code == 0, "what was there is in use"
        replace_files(old, new, "key_file", "ca_file")
        assert (await follows.request(address, Command(ECHO), 5)).code == 0, "a client's files are renewed, too"
        assert (await before.request(address, Command(ECHO), 5)).code == 0, "what is open stays open"
        late = ConnectionPool(tls=client_context(stays))
        with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
            await late.request(address, Command(ECHO), 5)
        for pool in (before, follows, again, late):
            await pool.close()


async def test_blocking_channels_use_renewed_files(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (old, _), (new, _) = certificates(tmp_path / "old"), certificates(tmp_path / "new")
    context = client_context(old)
    first = context.now()
    assert context.now() is first
    replace_files(old, new, "cert_file", "key_file", "ca_file")
    assert context.now() is not first
    assert BlockingChannelPool(context)._tls is context
