"""Which keepers there are, and how many of them decide. They change one at a time.

A keeper is known by its number and by its *incarnation*, a random text that its file was made with: a keeper whose disk
was emptied has another one, and its voice counts for nothing until the others have taken it in again as a new keeper.

While a change is under way (`before` is not None) both majorities are needed, that of the keepers before it and that of
the keepers after it. It is over when every value is known to lie with both; only then may the next change begin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.storage.errors import InvalidInput

#: More keepers than this only make each change slower.
MOST_KEEPERS: Final = 7


@dataclass(frozen=True, slots=True)
class KeeperMember:
    """One keeper: where it listens ("host:port", or an actor's name) and which incarnation of it is meant."""

    address: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class KeeperSet:
    """The keepers of a cluster. `number` counts their changes; keepers refuse who knows an older set than they do."""

    number: int = 0
    members: Mapping[int, KeeperMember] = field(default_factory=dict)
    before: Mapping[int, KeeperMember] | None = None

    @property
    def everyone(self) -> Mapping[int, KeeperMember]:
        """All who are asked: those of before a change that is under way, too."""
        return {**(self.before or {}), **self.members}

    def has_majority(self, agreed: Collection[int]) -> bool:
        """Whether so many agree that no other decision can have been made without one of them."""
        return all(2 * sum(each in agreed for each in group) > len(group) for group in self._groups())

    def may_have_majority(self, refused: Collection[int]) -> bool:
        """Whether the rest could still be a majority once these did not agree."""
        return self.has_majority(self.everyone.keys() - set(refused))

    def adding(self, number: int, member: KeeperMember) -> KeeperSet:
        """The set while a keeper is taken in.

        Raises:
            InvalidInput: another change is under way, or there is such a keeper, or there are too many.
        """
        self._check_settled()
        if number in self.members:
            raise InvalidInput("keeper", "a number that no keeper has", number)
        if len(self.members) >= MOST_KEEPERS:
            raise InvalidInput("keepers", f"at most {MOST_KEEPERS}", len(self.members) + 1)
        return KeeperSet(self.number + 1, {**self.members, number: member}, self.members)

    def removing(self, number: int) -> KeeperSet:
        """The set while a keeper is let go; raises as `adding`, and if it is the last one."""
        self._check_settled()
        if number not in self.members:
            raise InvalidInput("keeper", f"one of {sorted(self.members)}", number)
        if len(self.members) == 1:
            raise InvalidInput("keepers", "at least one", 0)
        rest = {each: member for each, member in self.members.items() if each != number}
        return KeeperSet(self.number + 1, rest, self.members)

    def settled(self) -> KeeperSet:
        """The set after the change."""
        return dataclasses.replace(self, number=self.number + 1, before=None)

    def follows(self, former: KeeperSet) -> bool:
        """Whether this is what one allowed step makes of `former`."""
        if self.number != former.number + 1:
            return False
        if former.before is not None:
            return self.before is None and self.members == former.members
        same = [each for each in self.members if former.members.get(each) == self.members[each]]
        differing = (len(self.members) - len(same)) + (len(former.members) - len(same))
        return self.before == former.members and differing == 1

    def to_json(self) -> dict[str, Any]:
        """The set as JSON values."""
        return {
            "number": self.number,
            "members": _members_json(self.members),
            "before": None if self.before is None else _members_json(self.before),
        }

    @classmethod
    def from_json(cls, raw: object) -> KeeperSet:
        """What `to_json` made; InvalidInput if it is of another form."""
        try:
            if not isinstance(raw, dict) or type(raw["number"]) is not int or raw["number"] < 0:
                raise TypeError("not a set of keepers")
            before = raw["before"]
            made = cls(raw["number"], _members(raw["members"]), None if before is None else _members(before))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise InvalidInput("keepers", "a set of keepers", f"{error!r}") from error
        if not 0 < len(made.members) <= MOST_KEEPERS or len(made.before or ()) > MOST_KEEPERS:
            raise InvalidInput("keepers", f"1..{MOST_KEEPERS}", len(made.members))
        return made

    def _groups(self) -> list[Mapping[int, KeeperMember]]:
        return [self.members] if self.before is None else [self.members, self.before]

    def _check_settled(self) -> None:
        if self.before is not None:
            raise InvalidInput("keepers", "one change at a time", "another change is under way")


def _members_json(members: Mapping[int, KeeperMember]) -> dict[str, Any]:
    return {str(number): [member.address, member.incarnation] for number, member in members.items()}


def _members(raw: Mapping[str, Any]) -> dict[int, KeeperMember]:
    made = {}
    for number, (address, incarnation) in raw.items():
        if not isinstance(address, str) or not isinstance(incarnation, str) or len(address + incarnation) > 600:
            raise TypeError(f"keeper {number}")
        made[int(number)] = KeeperMember(address, incarnation)
    return made
