"""Test that the asyncio twin of a blocking call takes the same arguments and sends the same request."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import raymq.client

CLIENT = Path(raymq.client.__file__).parent
#: Methods that run a request, by the form of the call; the request is the last argument.
_RUNNERS = {"_run", "_arun", "_change", "_achange"}
#: Calls whose twins work in another way; each has tests of its own.
_DIFFERENT = {
    *("Admin.dlq_messages", "Admin.elect", "Admin.read_table", "BodyLimits.check", "ClientBase.close"),
    *("Connection.close", "Connection.run", "Producer.flush", "Producer.recall", "Producer.send"),
    *("Producer.send_batch", "Producer.send_table", "PullConsumer.commit", "PullConsumer.fetch_table"),
    *("PullConsumer.poll", "PushConsumer.shutdown", "PushConsumer.start", "Transaction.commit", "Transaction.rollback"),
    *("TracedSends.send", "TracedSends.send_batch"),
}


def twins() -> Iterator[tuple[str, ast.FunctionDef, ast.AsyncFunctionDef]]:
    for path in sorted(CLIENT.rglob("*.py")):
        for owner in ast.walk(ast.parse(path.read_text())):
            if isinstance(owner, ast.ClassDef):
                calls = {f"a{each.name}": each for each in owner.body if isinstance(each, ast.FunctionDef)}
                for each in owner.body:
                    if isinstance(each, ast.AsyncFunctionDef) and (call := calls.get(each.name)) is not None:
                        yield f"{owner.name}.{call.name}", call, each


def requests(call: ast.AST) -> list[str]:
    """Return the requests that a call runs, as source text."""
    return [
        ast.unparse(each.args[-1])
        for each in ast.walk(call)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _RUNNERS
    ]


@pytest.mark.parametrize(("name", "call", "twin"), [pytest.param(*each, id=each[0]) for each in twins()])
def test_async_twin_sends_the_same_request(name: str, call: ast.FunctionDef, twin: ast.AsyncFunctionDef) -> None:
    assert name == "Connection.run" or ast.dump(call.args) == ast.dump(twin.args)
    if name not in _DIFFERENT:
        assert requests(call) == requests(twin)
        assert requests(call)


def test_every_exception_names_a_call() -> None:
    assert {name for name, _, _ in twins()} >= _DIFFERENT
