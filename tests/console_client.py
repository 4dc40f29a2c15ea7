"""An HTTP client for tests of the console: it sends exactly the headers that it is given."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        assert self.headers.get_content_type() == "application/json", self.text[:500]
        return json.loads(self.text)


class ConsoleClient:
    """Requests to one console; with a token each of them has it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.host = urlsplit(url).netloc
        self._token = token

    def get(self, path: str, **headers: str) -> Answer:
        """Return a page; `Host` is the console's own unless it is given."""
        return self._ask("GET", path, None, headers)

    def get_json(self, path: str) -> Any:
        """Return a page's data, by the header Accept; it must be there."""
        answer = self._ask("GET", path, None, {"Accept": "application/json"})
        assert answer.status == 200, answer.text
        return answer.json

    def post(self, path: str, fields: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        """Return the answer to a form."""
        body = urlencode(fields or {}, doseq=True)
        return self._ask("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded", **headers})

    def submit(self, path: str, fields: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        """Return the page to which a form leads that was taken."""
        taken = self.post(path, fields, **headers)
        assert taken.status == 303, taken.text
        return self.get(taken.headers["Location"])

    def post_bytes(self, path: str, body: bytes, headers: Mapping[str, str | bytes]) -> Answer:
        """Return the answer to a body as it is, with exactly these headers."""
        return self._ask("POST", path, body, headers)

    def post_json(self, path: str, fields: Mapping[str, Any]) -> Any:
        """Return the data that answers a JSON object; it must be done."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        answer = self._ask("POST", path, json.dumps(fields), headers)
        assert answer.status == 200, answer.text
        return answer.json

    def sign_in(self, token: str) -> tuple[str, str]:
        """Enter the token in the form, and return the cookie and the CSRF token of the session."""
        answer = self.post("/sign-in", {"token": token, "next": "/topics"}, Origin=f"http://{self.host}")
        assert (answer.status, answer.headers["Location"]) == (303, "/topics")
        cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        cookie = cookie.partition(";")[0]
        (csrf,) = set(re.findall(r'name="csrf" value="([^"]+)"', self.get("/topics", Cookie=cookie).text))
        return cookie, csrf

    def events(self, path: str) -> Generator[tuple[str, Any]]:
        """Open a stream of events, and return an iterator over them."""
        connection = http.client.HTTPConnection(self.host, timeout=20)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.headers.get_content_type() == "text/event-stream"
        return self._events_of(connection, answer)

    @staticmethod
    def _events_of(
        connection: http.client.HTTPConnection, answer: http.client.HTTPResponse
    ) -> Generator[tuple[str, Any]]:
        name = ""
        try:
            for line in map(bytes.decode, answer):
                if line.startswith("event: "):
                    name = line.removeprefix("event: ").strip()
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))
        finally:
            connection.close()

    def _ask(self, method: str, path: str, body: str | bytes | None, headers: Mapping[str, str | bytes]) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            named = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request(method, path, body, {**named, **headers})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()
