"""Test what the register reports when etcd gives no answer or a wrong one."""

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
from tests.unit.actors.keeper.in_memory_keepers import group

UNREACHABLE = "http://127.0.0.1:1"
HUNG = None
#: Status and body of an answer; None stands for no answer.
EtcdReply = tuple[int, bytes] | None
EMPTY = (200, b'{"succeeded": true, "responses": [{"response_range": {}}, {"response_range": {}}]}')


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Ignore errors, because the test's clients disconnect on purpose."""


@contextlib.contextmanager
def etcd_stub(answers: list[EtcdReply], tls: Tls | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve `answers` in turn, repeating the last one; yield its address and the requests received."""
    requests: list[str] = []
    end = threading.Event()

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            said = answers[min(len(requests), len(answers) - 1)]
            requests.append(self.path)
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
            yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}", requests
        finally:
            end.set()
            server.shutdown()


def error_reply(code: int, status: int = 503) -> EtcdReply:
    return status, json.dumps({"error": "no", "message": "no", "code": code}).encode()


def error_type_of(endpoints: list[str], act: Callable[[EtcdRegister], Coroutine[Any, Any, Any]]) -> type | None:
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


def test_unreachable_etcd_raises_register_unavailable() -> None:
    for act in (read, change, renew):
        assert error_type_of([UNREACHABLE, UNREACHABLE], act) is RegisterUnavailable
    assert error_type_of([UNREACHABLE], lambda register: register.release("g", LeaseClaim(1, "n", 1))) is None
    assert error_type_of([UNREACHABLE], lambda register: register.groups()) is RegisterUnavailable


def test_unreachable_endpoint_fails_over_to_next() -> None:
    with etcd_stub([EMPTY]) as (address, requests):
        assert error_type_of([UNREACHABLE, address], change) is None
        assert len(requests) == 2


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (HUNG, RegisterUnknown),
        (error_reply(14), RegisterUnknown),  # such as "leader changed", where the change may have been decided
        (error_reply(4, 504), RegisterUnknown),
        (error_reply(3, 400), RegisterUnavailable),
        (error_reply(7, 403), RegisterUnavailable),
        ((404, b"Not Found\n"), RegisterUnavailable),
        ((200, b"no JSON"), RegisterUnknown),
        ((200, b"[]"), RegisterUnknown),
        ((200, b'{"responses": 5}'), RegisterUnknown),
        ((200, b'{"responses": [{"response_range": {"kvs": [{"value": "x"}]}}]}'), RegisterUnknown),
    ],
)
def test_unanswered_change_is_unknown_unless_refused(
    said: EtcdReply, end: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is HUNG:
        monkeypatch.setattr(etcd_gateway, "REQUEST_SECONDS", 1.0)
    with etcd_stub([EMPTY, said]) as (address, requests):
        assert error_type_of([address], change) is end
        assert len(requests) == 2, "what may have been done is not sent again"
    with etcd_stub([said]) as (address, _):
        assert error_type_of([address], read) is RegisterUnavailable
        assert error_type_of([address], renew) is RegisterUnavailable


ONE = (200, b'{"responses": [{"response_range": {}}]}')


def test_concurrent_requests_leave_hung_endpoint() -> None:
    """Guard against all concurrent requests coming back to the endpoint that hangs.

    Each of three requests moved on by one server, so that all three returned to the hung one. A coordinator of
    three groups elected no master for as long as one server of three was stopped.
    """

    async def run(endpoints: list[str]) -> None:
        with contextlib.closing(EtcdRegister(endpoints, "/test")) as register:
            for failed in (3, 0):
                results = await asyncio.gather(
                    *(register.read(f"g{each}") for each in range(3)), return_exceptions=True
                )
                assert [isinstance(each, RegisterUnavailable) for each in results] == [failed > 0] * 3

    with etcd_stub([HUNG]) as (hung, _), etcd_stub([ONE]) as (second, _), etcd_stub([ONE]) as (third, _):
        asyncio.run(run([hung, second, third]))


@pytest.mark.parametrize(
    "said", [(404, b"Not Found"), (502, b"<html>"), (200, b"[]"), (200, b"{}"), (200, b"[" * 9999)]
)
def test_endpoint_that_is_not_etcd_is_skipped_next_time(said: EtcdReply) -> None:
    """Guard against asking another service at that address, or an empty balancer, forever."""

    async def run(endpoints: list[str]) -> None:
        with contextlib.closing(EtcdRegister(endpoints, "/test")) as register:
            with pytest.raises(RegisterUnavailable):
                await register.read("g")
            assert (await register.read("g")).value is None

    with etcd_stub([said]) as (other, _), etcd_stub([ONE]) as (address, _):
        asyncio.run(run([other, address]))


@pytest.mark.parametrize("value", [b"[]", b"1", b"null", b"no JSON", b"\xff", b'{"version": Infinity}'])
def test_foreign_value_raises_register_unavailable(value: bytes) -> None:
    """Guard against an AttributeError that ended a broker's loops for good."""
    found = {"kvs": [{"value": base64.b64encode(value).decode(), "mod_revision": "3", "version": "1"}]}
    said = 200, json.dumps({"responses": [{"response_range": found}]}).encode()
    with etcd_stub([said]) as (address, _):
        for act in (read, renew):
            assert error_type_of([address], act) is RegisterUnavailable


def test_renewed_certificates_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against masters that lose their leases for good when their first certificate expires."""
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

    with etcd_stub([ONE], replace(server, client_auth=True)) as (at, _):
        asyncio.run(run(at))


def test_closed_register_raises_register_unavailable() -> None:
    async def run() -> None:
        register = EtcdRegister([UNREACHABLE], "/test")
        register.close()
        with pytest.raises(RegisterUnavailable):
            await register.read("g")

    asyncio.run(run())


@pytest.mark.parametrize("endpoints", [[], ["127.0.0.1:2379"], ["ftp://x"]])
def test_invalid_endpoints_raise_invalid_input(endpoints: list[str]) -> None:
    with pytest.raises(InvalidInput):
        EtcdRegister(endpoints, "/test")
