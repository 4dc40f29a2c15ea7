"""Requests to etcd's JSON gateway (`/v3/...`), by urllib3 on threads of their own.

etcd speaks gRPC, and beside it the same calls as JSON over HTTP, which needs no client library but one for HTTP: keys
and values travel as base64, 64-bit numbers as text.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import urllib3

from raymq.actors.keeper.errors import RegisterError
from raymq.storage.errors import InvalidInput

#: So long one request may take, connecting included; a master uses 1.6 s of its lease, and asks every half second.
REQUEST_SECONDS: Final = 0.8
_THREADS: Final = 8
#: gRPC's codes of refusals that say that nothing was done: INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED,
#: FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED.
_NOT_DONE: Final = frozenset({3, 5, 7, 9, 12, 16})
_MOST_ANSWER_BYTES: Final = 16 << 20
#: What reading ends with where something else was written than is read.
OTHER_FORM: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
_T = TypeVar("_T")


class EtcdFailed(RegisterError):
    """A request has no answer that counts. `.may_be_done`: it may be carried out now, or later."""

    retriable = True

    def __init__(self, message: str = "", *, may_be_done: bool = True) -> None:
        super().__init__(message)
        self.may_be_done = may_be_done


@dataclass(frozen=True, slots=True)
class EtcdValue:
    """A key's value, and when it was written: `mod_revision` is another one after each write, `version` counts them.

    `ends`: it hangs on a lease, with which it goes.
    """

    value: bytes
    mod_revision: int
    version: int
    ends: bool = False


class EtcdGateway:
    """One client of an etcd cluster. Coroutines of one event loop; `close` ends it."""

    def __init__(self, endpoints: Sequence[str], tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """`endpoints`: such as "http://10.0.0.1:2379", all of the cluster's. InvalidInput without any.

        `tls`: the context for the next connection, from any thread; another one when its files were replaced.
        """
        if not endpoints or not all(each.startswith(("http://", "https://")) for each in endpoints):
            raise InvalidInput("etcd", "addresses that begin with http:// or https://", list(endpoints))
        self._endpoints = [each.rstrip("/") for each in endpoints]
        self._preferred = 0
        self._closed = False
        self._tls = tls
        self._http = _pools(None if tls is None else tls())
        self._threads = ThreadPoolExecutor(_THREADS, "etcd")

    async def transact(
        self,
        compare: Sequence[Mapping[str, Any]],
        then: Sequence[Mapping[str, Any]],
        otherwise: Sequence[Mapping[str, Any]],
    ) -> tuple[bool, list[EtcdValue | None]]:
        """A transaction: whether the comparisons held, and what the ranges of the branch that was taken have found.

        Raises:
            EtcdFailed: `.may_be_done` says whether it may have been carried out.
        """
        asked = {"compare": list(compare), "success": list(then), "failure": list(otherwise)}

        def read(answer: Mapping[str, Any]) -> tuple[bool, list[EtcdValue | None]]:
            holds = bool(answer.get("succeeded")) or not compare
            found = [each["response_range"] for each in answer.get("responses", ()) if "response_range" in each]
            wanted = sum("request_range" in each for each in (then if holds else otherwise))
            if len(found) < wanted:
                raise ValueError(f"{len(found)} ranges of {wanted}")
            return holds, [_first(each) for each in found[:wanted]]

        return await self._post("kv/txn", asked, read)

    async def keys(self, prefix: str) -> list[str]:
        """All keys that begin so, without that; EtcdFailed."""
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])

        def read(answer: Mapping[str, Any]) -> list[str]:
            return [b64decode(each["key"]).decode().removeprefix(prefix) for each in answer.get("kvs", ())]

        asked = {"key": _text(begin), "range_end": _text(end), "keys_only": True}
        return await self._post("kv/range", asked, read)

    async def grant(self, seconds: int) -> tuple[str, int]:
        """A new lease: its id, and its seconds, which may be more than was asked for; EtcdFailed."""
        return await self._post("lease/grant", {"TTL": seconds}, lambda answer: (str(answer["ID"]), int(answer["TTL"])))

    async def compact(self, revision: int) -> None:
        """Have it forget what keys were before that revision; EtcdFailed, also where it has done so already."""
        await self._post("kv/compaction", {"revision": str(revision)}, lambda _: None)

    def close(self) -> None:
        """End it; what is under way goes on for as long as its time-out."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http[0].clear()

    async def _post(self, call: str, asked: Mapping[str, Any], read: Callable[[Mapping[str, Any]], _T]) -> _T:
        """What `read` makes of the answer; EtcdFailed."""
        body = json.dumps(asked, separators=(",", ":")).encode()
        if self._closed:
            raise EtcdFailed("the register is closed", may_be_done=False)
        try:
            post = self._post_somewhere
            return await asyncio.get_running_loop().run_in_executor(self._threads, post, call, body, read)
        except OTHER_FORM as error:
            raise EtcdFailed(f"etcd's answer to {call} is of another form: {error!r}") from error

    def _post_somewhere(self, call: str, body: bytes, read: Callable[[Mapping[str, Any]], _T]) -> _T:
        """On a thread: at the endpoint that answered last, and as long as none was reached, at the others."""
        last = ""
        for _ in self._endpoints:
            number = self._preferred
            endpoint = self._endpoints[number]
            timeout = urllib3.Timeout(total=REQUEST_SECONDS, connect=REQUEST_SECONDS / 2)
            try:
                pools = self._pools_now()
                answer = pools.request("POST", f"{endpoint}/v3/{call}", body=body, timeout=timeout, redirect=False)
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
                last = f"{endpoint}: {error}"  # nothing was sent
                self._leave(number)
                continue
            except (urllib3.exceptions.HTTPError, OSError) as error:
                self._leave(number)
                raise EtcdFailed(f"{endpoint}: {error}") from error
            try:
                return read(self._told(endpoint, call, answer))
            except (EtcdFailed, *OTHER_FORM):
                self._leave(number)
                raise
        raise EtcdFailed(f"no etcd is reached: {last}", may_be_done=False)

    def _leave(self, number: int) -> None:
        """Ask the next endpoint from now on: once, however many requests have failed at this one together."""
        if self._preferred == number:
            self._preferred = (number + 1) % len(self._endpoints)

    def _pools_now(self) -> urllib3.PoolManager:
        """With the context of now. Connections of before end with the requests on them."""
        if self._tls is not None and (context := self._tls()) is not self._http[1]:
            self._http = _pools(context)
        return self._http[0]

    def _told(self, endpoint: str, call: str, answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        if len(answer.data) > _MOST_ANSWER_BYTES:
            raise EtcdFailed(f"{endpoint}: an answer of {len(answer.data)} B to {call}")
        if answer.status == 404 and not answer.data.startswith(b"{"):
            raise EtcdFailed(f"{endpoint} has no /v3 gateway; etcd 3.4 or later is needed", may_be_done=False)
        told = json.loads(answer.data)
        if not isinstance(told, dict):
            raise TypeError(type(told).__name__)
        if answer.status == 200:
            return told
        remark = f"{endpoint}: {told.get('message') or told.get('error')}"
        raise EtcdFailed(remark, may_be_done=told.get("code") not in _NOT_DONE)


def _pools(tls: ssl.SSLContext | None) -> tuple[urllib3.PoolManager, ssl.SSLContext | None]:
    return urllib3.PoolManager(maxsize=_THREADS, retries=False, ssl_context=tls), tls


def _first(found: Mapping[str, Any]) -> EtcdValue | None:
    for each in found.get("kvs", ()):
        ends = int(each.get("lease", 0)) != 0
        return EtcdValue(b64decode(each.get("value", "")), int(each["mod_revision"]), int(each["version"]), ends)
    return None


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def is_unchanged(key: str, mod_revision: int) -> dict[str, Any]:
    """A comparison: the key was last written then; 0: it is not there."""
    told = {"target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}
    return {"key": _text(key.encode()), **told}


def is_value(key: str, value: bytes) -> dict[str, Any]:
    """A comparison: the key has this value."""
    return {"key": _text(key.encode()), "target": "VALUE", "result": "EQUAL", "value": _text(value)}


def get(key: str) -> dict[str, Any]:
    """A step: read the key."""
    return {"request_range": {"key": _text(key.encode())}}


def put(key: str, value: bytes, lease: str = "0") -> dict[str, Any]:
    """A step: write the key, which goes with the lease."""
    return {"request_put": {"key": _text(key.encode()), "value": _text(value), "lease": lease}}


def delete(key: str) -> dict[str, Any]:
    """A step: delete the key."""
    return {"request_delete_range": {"key": _text(key.encode())}}
