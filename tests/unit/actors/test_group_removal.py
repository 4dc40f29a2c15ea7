"""Check that a broker itself refuses to delete a group that is in use."""

from __future__ import annotations

import pytest

from raymq.actors.broker.core.groups.client_registry import ClientRegistry, ConsumerData
from raymq.actors.broker.core.groups.group_remover import GroupRemover
from raymq.actors.errors import InvalidInput
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import IDLE_SECONDS
from raymq.client import Message
from tests.unit.actors.bench import Bench


@pytest.fixture
def groups(bench: Bench) -> ClientRegistry:
    return ClientRegistry(bench.elapsed)


def test_group_with_recent_commit_is_not_deleted(bench: Bench, groups: ClientRegistry) -> None:
    """Refuse a deletion when a commit arrived after the client's own check."""
    remover = GroupRemover(bench.core, groups)
    bench.core.ensure_group("g")
    bench.append(Message("t", b"x"))
    bench.core.offsets.commit("g", "t", 0, 1)
    bench.elapsed.advance(IDLE_SECONDS - 1)
    with pytest.raises(InvalidInput, match=f"a commit {IDLE_SECONDS - 1:.0f} s ago"):
        remover.delete("g", dead_letters=False)
    assert bench.core.offsets.get("g", "t", 0) == 1
    bench.elapsed.advance(1)
    remover.delete("g", dead_letters=False)
    assert "g" not in bench.core.group_settings


def test_group_with_member_is_not_deleted(bench: Bench, groups: ClientRegistry) -> None:
    remover = GroupRemover(bench.core, groups)
    bench.core.ensure_group("g")
    groups.register_client("x", "c1", "PYTHON", 0)
    groups.register_consumer("x", ConsumerData("g", {"t": Subscription("t")}))
    with pytest.raises(InvalidInput, match="1 members"):
        remover.delete("g", dead_letters=False)
    assert "g" in bench.core.group_settings
