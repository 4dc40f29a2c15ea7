"""What a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Severity(enum.Enum):
    """How bad it is."""

    #: It was looked at, and is as it should be.
    FINE = "fine"
    #: Worth knowing; nothing is broken.
    NOTE = "note"
    #: Something does not work, or will not for long.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        found: one sentence.
        where: the machine, directory, broker or process that it is about.
        remedy: what to do, one sentence; empty where nothing is to be done.
    """

    check: str
    severity: Severity
    found: str
    where: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is no problem."""
        return self.severity is not Severity.PROBLEM

    def fields(self) -> dict[str, Any]:
        """As it is printed."""
        return {
            "check": self.check,
            "ok": self.ok,
            "severity": self.severity.value,
            "found": self.found,
            "where": self.where,
            "remedy": self.remedy,
        }


def fine(check: str, found: str, where: str = "") -> Finding:
    """It is as it should be."""
    return Finding(check, Severity.FINE, found, where)


def note(check: str, found: str, where: str = "", remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check, Severity.NOTE, found, where, remedy)


def problem(check: str, found: str, where: str = "", remedy: str = "") -> Finding:
    """Something does not work, or will not for long."""
    return Finding(check, Severity.PROBLEM, found, where, remedy)
