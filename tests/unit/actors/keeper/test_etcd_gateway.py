"""What is known when etcd does not answer, or answers something else; without an etcd."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.keeper.errors import RegisterError, RegisterUnavailable, RegisterUnknown
from raymq.actors.keeper.etcd import etcd_gateway
from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
from raymq.actors.keeper.serving.register_location import etcd_location, open_register
from raymq.actors.protocol import Etcd, Tls
from raymq.actors.wire import tls as wire_tls
from raymq.actors.wire.tls import server_context
from raymq.storage.errors import InvalidInput
from tests.certificates import certificates
from tests.unit.actors.keeper.keepers_at_hand import group

NOBODY = "http://127.0.0.1:1"
HUNG = None
#: Status and body of an answer; None: none comes.
Said = tuple[int, bytes] | None
EMPTY = (200, b'{"succeeded": true, "responses": [{"response_range": {}}, {"response_range": {}}]}')


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Clients go away on purpose."""


@contextlib.contextmanager
def answering(answers: list[Said], tls: Tls | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that says these in turn, the last one again and again; its address, and what it was asked."""
    asked: list[str] = []
    end = threading.Event()

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            said = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            if said is HUNG:
                end.wait(30.0)
                return
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(said[1])))
            self.end_headers()
            self.wfile.write(said[1])

        def log_message(self, *_: Any) -> None:
            pass

    with QuietServer(("127.0.0.1", 0), Answering) as server:
        if tls is not None:
            server.socket = server_context(tls).wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}", asked
        finally:
            end.set()
            server.shutdown()


def refused(code: int, status: int = 503) -> Said:
    return status, json.dumps({"error": "no", "message": "no", "code": code}).encode()


def ends_with(endpoints: list[str], act: Callable[[EtcdRegister], Coroutine[Any, Any, Any]]) -> type | None:
    async def run() -> type | None:
        with contextlib.closing(EtcdRegister(endpoints, "/test")) as register:
            try:
                await act(register)
            except RegisterError as error:
                return type(error)
            return None

    return asyncio.run(run())


def read(register: EtcdRegister) -> Coroutine[Any, Any, Any]:
    return register.read("g")


def change(register: EtcdRegister) -> Coroutine[Any, Any, Any]:
    return register.change("g", Registered(), group())


def renew(register: EtcdRegister) -> Coroutine[Any, Any, Any]:
    return register.renew("g", LeaseClaim(1, "n", 1))


def test_nothing_was_done_where_nobody_was_reached() -> None:
    for act in (read, change, renew):
        assert ends_with([NOBODY, NOBODY], act) is RegisterUnavailable
    assert ends_with([NOBODY], lambda register: register.release("g", LeaseClaim(1, "n", 1))) is None
    assert ends_with([NOBODY], lambda register: register.groups()) is RegisterUnavailable


def test_the_next_server_is_asked_where_one_is_not_reached() -> None:
    with answering([EMPTY]) as (address, asked):
        assert ends_with([NOBODY, address], change) is None
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (HUNG, RegisterUnknown),
        (refused(14), RegisterUnknown),  # such as "leader changed": it may have been decided
        (refused(4, 504), RegisterUnknown),
        (refused(3, 400), RegisterUnavailable),
        (refused(7, 403), RegisterUnavailable),
        ((404, b"Not Found\n"), RegisterUnavailable),
        ((200, b"no JSON"), RegisterUnknown),
        ((200, b"[]"), RegisterUnknown),
        ((200, b'{"responses": 5}'), RegisterUnknown),
        ((200, b'{"responses": [{"response_range": {"kvs": [{"value": "x"}]}}]}'), RegisterUnknown),
    ],
)
def test_a_change_without_an_answer_is_unknown_unless_it_was_refused(
    said: Said, end: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is HUNG:
        monkeypatch.setattr(etcd_gateway, "REQUEST_SECONDS", 1.0)
    with answering([EMPTY, said]) as (address, asked):
        assert ends_with([address], change) is end
        assert len(asked) == 2, "what may have been done is not sent again"
    with answering([said]) as (address, _):
        assert ends_with([address], read) is RegisterUnavailable
        assert ends_with([address], renew) is RegisterUnavailable


ONE = (200, b'{"responses": [{"response_range": {}}]}')


def test_a_server_that_hangs_is_left_by_all_who_ask_it_together() -> None:
    """Each of three requests went one server further: all three came back to the one that hung, again and again. A
    coordinator of three groups elected nobody for as long as one server of three was stopped.
    """

    async def run(endpoints: list[str]) -> None:
        with contextlib.closing(EtcdRegister(endpoints, "/test")) as register:
            for failed in (3, 0):
                told = await asyncio.gather(*(register.read(f"g{each}") for each in range(3)), return_exceptions=True)
                assert [isinstance(each, RegisterUnavailable) for each in told] == [failed > 0] * 3

    with answering([HUNG]) as (hung, _), answering([ONE]) as (second, _), answering([ONE]) as (third, _):
        asyncio.run(run([hung, second, third]))


@pytest.mark.parametrize(
    "said", [(404, b"Not Found"), (502, b"<html>"), (200, b"[]"), (200, b"{}"), (200, b"[" * 9999)]
)
def test_who_is_no_etcd_is_not_asked_again_and_again(said: Said) -> None:
    """What else listens at that address now, or a balancer with nobody behind it, was asked for ever."""

    async def run(endpoints: list[str]) -> None:
        with contextlib.closing(EtcdRegister(endpoints, "/test")) as register:
            with pytest.raises(RegisterUnavailable):
                await register.read("g")
            assert (await register.read("g")).value is None

    with answering([said]) as (other, _), answering([ONE]) as (address, _):
        asyncio.run(run([other, address]))


@pytest.mark.parametrize("value", [b"[]", b"1", b"null", b"no JSON", b"\xff", b'{"version": Infinity}'])
def test_what_somebody_else_has_written_is_no_state(value: bytes) -> None:
    """A broker's loops ended with an AttributeError, and did not go on when the state was there again."""
    found = {"kvs": [{"value": base64.b64encode(value).decode(), "mod_revision": "3", "version": "1"}]}
    said = 200, json.dumps({"responses": [{"response_range": found}]}).encode()
    with answering([said]) as (address, _):
        for act in (read, renew):
            assert ends_with([address], act) is RegisterUnavailable


def test_certificates_that_were_renewed_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters ended with their leases when the certificate of their start had expired, for good."""
    monkeypatch.setattr(wire_tls, "RELOAD_CHECK_SECONDS", 0.0)
    (_, before), (server, renewed) = (certificates(tmp_path / name) for name in ("before", "renewed"))

    def renew_files() -> None:
        for old, new in zip(asdict(before).values(), asdict(renewed).values(), strict=True):
            if isinstance(old, str):
                shutil.copy(new, old)

    async def run(endpoint: str) -> None:
        opened = open_register(etcd_location(Etcd((endpoint,), before), "c"), None)
        try:
            with pytest.raises(RegisterUnavailable):
                await opened.register.read("g")
            renew_files()
            assert (await opened.register.read("g")).value is None
        finally:
            await opened.close()

    with answering([ONE], replace(server, client_auth=True)) as (at, _):
        asyncio.run(run(at))


def test_a_register_that_is_closed_is_unavailable() -> None:
    async def run() -> None:
        register = EtcdRegister([NOBODY], "/test")
        register.close()
        with pytest.raises(RegisterUnavailable):
            await register.read("g")

    asyncio.run(run())


@pytest.mark.parametrize("endpoints", [[], ["127.0.0.1:2379"], ["ftp://x"]])
def test_addresses_that_are_none_are_refused(endpoints: list[str]) -> None:
    with pytest.raises(InvalidInput):
        EtcdRegister(endpoints, "/test")
