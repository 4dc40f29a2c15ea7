"""The set of keepers and its majorities.

Keepers are added and removed one at a time. A keeper is identified by its number and by its *incarnation*, a random
text that was generated with its file. A keeper whose disk was wiped has another incarnation, and its vote does not
count until the others have added it as a new keeper.

While a change is in progress (`before` is not None) two majorities are needed: one of the keepers before the change and
one of the keepers after it. The change is complete when every value is known to be stored at both majorities; only then
may the next change begin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from raymq.storage.errors import InvalidInput

#: More keepers would only make each change slower.
MAX_KEEPERS: Final = 7


_Text = Annotated[str, Meta(max_length=300)]


class KeeperMember(Struct, frozen=True, array_like=True):
    """One keeper: its address ("host:port", or an actor's name) and its incarnation."""

    address: _Text
    incarnation: _Text


_Members = Annotated[Mapping[int, KeeperMember], Meta(max_length=MAX_KEEPERS)]


class KeeperSet(Struct, frozen=True, tag_field="kind", tag="keepers"):
    """The keepers of a cluster.

    `number` counts the changes of the set. A keeper refuses clients that know an older set than it does.
    """

    number: Annotated[int, Meta(ge=0)] = 0
    members: _Members = msgspec.field(default_factory=dict)
    before: _Members | None = None

    @property
    def all_members(self) -> Mapping[int, KeeperMember]:
        """Return all keepers to send to, also those from before a change in progress."""
        return {**(self.before or {}), **self.members}

    def has_majority(self, agreed: Collection[int]) -> bool:
        """Return True if these keepers are a majority.

        Then no other decision can have been made without one of them.
        """
        return all(2 * sum(each in agreed for each in group) > len(group) for group in self._groups())

    def may_have_majority(self, refused: Collection[int]) -> bool:
        """Return True if the keepers that have not refused could still be a majority."""
        return self.has_majority(self.all_members.keys() - set(refused))

    def with_member(self, number: int, member: KeeperMember) -> KeeperSet:
        """Return the set during the addition of a keeper.

        Raises:
            InvalidInput: another change is in progress, the number is in use, or there are too many keepers.
        """
        self._check_settled()
        if number in self.members:
            raise InvalidInput("keeper", "a number that is not in use", number)
        if len(self.members) >= MAX_KEEPERS:
            raise InvalidInput("keepers", f"at most {MAX_KEEPERS}", len(self.members) + 1)
        return KeeperSet(self.number + 1, {**self.members, number: member}, self.members)

    def without_member(self, number: int) -> KeeperSet:
        """Return the set during the removal of a keeper.

        Raise InvalidInput if another change is in progress, the keeper is unknown, or it is the last one.
        """
        self._check_settled()
        if number not in self.members:
            raise InvalidInput("keeper", f"one of {sorted(self.members)}", number)
        if len(self.members) == 1:
            raise InvalidInput("keepers", "at least one", 0)
        rest = {each: member for each, member in self.members.items() if each != number}
        return KeeperSet(self.number + 1, rest, self.members)

    def settled(self) -> KeeperSet:
        """Return the set after the change in progress."""
        return replace(self, number=self.number + 1, before=None)

    def follows(self, former: KeeperSet) -> bool:
        """Return True if this set is the result of one allowed step from `former`."""
        if self.number != former.number + 1:
            return False
        if former.before is not None:
            return self.before is None and self.members == former.members
        same = [each for each in self.members if former.members.get(each) == self.members[each]]
        differing = (len(self.members) - len(same)) + (len(former.members) - len(same))
        return self.before == former.members and differing == 1

    def to_json(self) -> dict[str, Any]:
        """Return the set as JSON values."""
        content: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return content

    @classmethod
    def from_json(cls, raw: object) -> KeeperSet:
        """Return the set that `to_json` encoded; raise InvalidInput for any other form."""
        try:
            return msgspec.convert(raw, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise InvalidInput("keepers", "a set of keepers", str(error)) from error

    def _groups(self) -> list[Mapping[int, KeeperMember]]:
        return [self.members] if self.before is None else [self.members, self.before]

    def _check_settled(self) -> None:
        if self.before is not None:
            raise InvalidInput("keepers", "one change at a time", "another change is in progress")
