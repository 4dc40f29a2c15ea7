"""Send requests to etcd's JSON gateway (`/v3/...`), by urllib3 on its own threads.

etcd speaks gRPC, and offers the same calls as JSON over HTTP. JSON needs no client library except one for HTTP. Keys
and values travel as base64, and 64-bit numbers as text.
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

#: The time-out of one request in seconds, connecting included. A master uses 1.6 s of its lease, and renews it every
#: half second.
REQUEST_SECONDS: Final = 0.8
_THREADS: Final = 8
#: gRPC's codes of refusals after which nothing was changed: INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED,
#: FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED.
_NOT_DONE: Final = frozenset({3, 5, 7, 9, 12, 16})
_MAX_ANSWER_BYTES: Final = 16 << 20
#: The errors of decoding an answer that has another form than expected.
OTHER_FORM: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
_T = TypeVar("_T")


class EtcdFailed(RegisterError):
    """A request has no valid answer.

    `.may_be_done`: the request may be carried out, now or later.
    """

    retriable = True

    def __init__(self, message: str = "", *, may_be_done: bool = True) -> None:
        super().__init__(message)
        self.may_be_done = may_be_done


@dataclass(frozen=True, slots=True)
class EtcdValue:
    """A key's value and its revisions in etcd.

    `mod_revision` is another one after each write, and `version` counts the writes. `has_lease`: the key is attached to
    a lease, and is deleted when the lease ends.
    """

    value: bytes
    mod_revision: int
    version: int
    has_lease: bool = False


class EtcdGateway:
    """One client of an etcd cluster.

    Its methods are coroutines of one event loop. Call `close` at the end.
    """

    def __init__(self, endpoints: Sequence[str], tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Create the client without a connection; raise InvalidInput without endpoints.

        `endpoints`: all addresses of the cluster, such as "http://10.0.0.1:2379".

        `tls`: returns the context for the next connection, and is called from any thread. It returns another context
        after its files were replaced.
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
        """Run a transaction; return whether its comparisons held, and the values that it read.

        The values are those of the ranges in the branch that was taken.

        Raises:
            EtcdFailed: `.may_be_done` says whether the transaction may have been carried out.
        """
        request = {"compare": list(compare), "success": list(then), "failure": list(otherwise)}

        def read(answer: Mapping[str, Any]) -> tuple[bool, list[EtcdValue | None]]:
            holds = bool(answer.get("succeeded")) or not compare
            found = [each["response_range"] for each in answer.get("responses", ()) if "response_range" in each]
            count = sum("request_range" in each for each in (then if holds else otherwise))
            if len(found) < count:
                raise ValueError(f"{len(found)} of {count} ranges")
            return holds, [_first(each) for each in found[:count]]

        return await self._post("kv/txn", request, read)

    async def keys(self, prefix: str) -> list[str]:
        """Return all keys with this prefix, without the prefix; raise EtcdFailed."""
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])

        def read(answer: Mapping[str, Any]) -> list[str]:
            return [b64decode(each["key"]).decode().removeprefix(prefix) for each in answer.get("kvs", ())]

        request = {"key": _text(begin), "range_end": _text(end), "keys_only": True}
        return await self._post("kv/range", request, read)

    async def grant(self, seconds: int) -> tuple[str, int]:
        """Grant a new lease; return its id and its seconds.

        etcd may grant more seconds than were requested. Raise EtcdFailed if there is no valid answer.
        """
        return await self._post("lease/grant", {"TTL": seconds}, lambda answer: (str(answer["ID"]), int(answer["TTL"])))

    async def compact(self, revision: int) -> None:
        """Delete the history of all keys before that revision.

        Raise EtcdFailed, also if etcd has compacted to that revision already.
        """
        await self._post("kv/compaction", {"revision": str(revision)}, lambda _: None)

    def close(self) -> None:
        """Close the client; requests in progress go on until their time-out."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http[0].clear()

    async def _post(self, call: str, request: Mapping[str, Any], read: Callable[[Mapping[str, Any]], _T]) -> _T:
        """Send a request and return its answer as decoded by `read`; raise EtcdFailed."""
        body = json.dumps(request, separators=(",", ":")).encode()
        if self._closed:
            raise EtcdFailed("the register is closed", may_be_done=False)
        try:
            post = self._post_somewhere
            return await asyncio.get_running_loop().run_in_executor(self._threads, post, call, body, read)
        except OTHER_FORM as error:
            raise EtcdFailed(f"etcd's answer to {call} is malformed: {error!r}") from error

    def _post_somewhere(self, call: str, body: bytes, read: Callable[[Mapping[str, Any]], _T]) -> _T:
        """Send a request to the endpoint that answered last, else to the other ones.

        It runs on a pool thread, and tries the next endpoint only while no connection was made.
        """
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
                return read(self._decoded(endpoint, call, answer))
            except (EtcdFailed, *OTHER_FORM):
                self._leave(number)
                raise
        raise EtcdFailed(f"no etcd endpoint could be reached: {last}", may_be_done=False)

    def _leave(self, number: int) -> None:
        """Prefer the next endpoint from now on.

        Several requests that fail at the same endpoint together move the preference only once.
        """
        if self._preferred == number:
            self._preferred = (number + 1) % len(self._endpoints)

    def _pools_now(self) -> urllib3.PoolManager:
        """Return the connection pools with the current TLS context.

        Connections with a former context end with their requests.
        """
        if self._tls is not None and (context := self._tls()) is not self._http[1]:
            self._http = _pools(context)
        return self._http[0]

    def _decoded(self, endpoint: str, call: str, answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        if len(answer.data) > _MAX_ANSWER_BYTES:
            raise EtcdFailed(f"{endpoint}: the answer to {call} is too long: {len(answer.data)} B")
        if answer.status == 404 and not answer.data.startswith(b"{"):
            raise EtcdFailed(f"{endpoint} has no /v3 gateway; etcd 3.4 or later is needed", may_be_done=False)
        content = json.loads(answer.data)
        if not isinstance(content, dict):
            raise TypeError(type(content).__name__)
        if answer.status == 200:
            return content
        remark = f"{endpoint}: {content.get('message') or content.get('error')}"
        raise EtcdFailed(remark, may_be_done=content.get("code") not in _NOT_DONE)


def _pools(tls: ssl.SSLContext | None) -> tuple[urllib3.PoolManager, ssl.SSLContext | None]:
    return urllib3.PoolManager(maxsize=_THREADS, retries=False, ssl_context=tls), tls


def _first(found: Mapping[str, Any]) -> EtcdValue | None:
    for each in found.get("kvs", ()):
        has_lease = int(each.get("lease", 0)) != 0
        return EtcdValue(b64decode(each.get("value", "")), int(each["mod_revision"]), int(each["version"]), has_lease)
    return None


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def is_unchanged(key: str, mod_revision: int) -> dict[str, Any]:
    """Return a comparison: the key was last written at that revision (0: no such key)."""
    comparison = {"target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}
    return {"key": _text(key.encode()), **comparison}


def is_value(key: str, value: bytes) -> dict[str, Any]:
    """Return a comparison: the key has this value."""
    return {"key": _text(key.encode()), "target": "VALUE", "result": "EQUAL", "value": _text(value)}


def get(key: str) -> dict[str, Any]:
    """Return an operation that reads the key."""
    return {"request_range": {"key": _text(key.encode())}}


def put(key: str, value: bytes, lease: str = "0") -> dict[str, Any]:
    """Return an operation that writes the key and attaches it to the lease."""
    return {"request_put": {"key": _text(key.encode()), "value": _text(value), "lease": lease}}


def delete(key: str) -> dict[str, Any]:
    """Return an operation that deletes the key."""
    return {"request_delete_range": {"key": _text(key.encode())}}
