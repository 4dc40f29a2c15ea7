"""Test valid and invalid forms of name server addresses."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.client import arguments
from raymq.cluster import connect
from raymq.storage.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("h:1", ["h:1"]),
        ("h:1;i:2", ["h:1", "i:2"]),
        ("h:1,i:2", ["h:1", "i:2"]),
        (" h:1 ; i:2, j:3;", ["h:1", "i:2", "j:3"]),
        (["h:1;i:2", "j:3"], ["h:1", "i:2", "j:3"]),
        (("h:1",), ["h:1"]),
        ("[::1]:9876", ["[::1]:9876"]),
        ("127.0.0.1:65535", ["127.0.0.1:65535"]),
        ("mq_1.my-cluster.svc.local.:9876", ["mq_1.my-cluster.svc.local.:9876"]),
    ],
)
def test_address_lists_are_parsed(given: Any, addresses: list[str]) -> None:
    assert arguments.addresses("name_servers", given) == addresses
    with connect(name_servers=given) as mq:
        assert mq.name_servers == addresses


@pytest.mark.parametrize(
    "given",
    [
        *("", ";", "h", "h:", ":1", "h:0", "h:65536", "h:99999999999", "h:x", "h:-1", "h: 1", "h:\uff11", "h i:1"),
        *("http://h:9876", "h:9876/", "user@h:1", "h:1:2", "::1:9876", "[::1]", "[h]:1", "[127.0.0.1]:1"),
        *("999.1.1.1:9876", "1.2.3:9876", "12345:9876", "-h:1", "h-:1", "h..i:1", f"{'h' * 64}:1"),
        *([], ["h:1", "i"], ["h:1", 2], 7, b"h:1", {"h:1": 1}),
    ],
    ids=repr,
)
def test_invalid_addresses_are_refused_by_connect(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r'"host:port"') as caught:
        connect(name_servers=given)
    assert caught.value.field == "name_servers"
