"""The result of a check."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Severity(enum.Enum):
    """The severity of a result."""

    #: The check found no fault.
    FINE = "fine"
    #: Worth knowing, but nothing is broken.
    NOTE = "note"
    #: Something does not work, or will stop working soon.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        found: what was found, in one sentence.
        where: the machine, directory, broker or process of the result.
        remedy: the action to take, in one sentence; empty if none is needed.
    """

    check: str
    severity: Severity
    found: str
    where: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Return True unless the result is a problem."""
        return self.severity is not Severity.PROBLEM

    def fields(self) -> dict[str, Any]:
        """Return the fields for printing."""
        return {
            "check": self.check,
            "ok": self.ok,
            "severity": self.severity.value,
            "found": self.found,
            "where": self.where,
            "remedy": self.remedy,
        }


def fine(check: str, found: str, where: str = "") -> CheckResult:
    """Create a result without a fault."""
    return CheckResult(check, Severity.FINE, found, where)


def note(check: str, found: str, where: str = "", remedy: str = "") -> CheckResult:
    """Create a result that is worth knowing."""
    return CheckResult(check, Severity.NOTE, found, where, remedy)


def problem(check: str, found: str, where: str = "", remedy: str = "") -> CheckResult:
    """Create a result about something that does not work, or will stop working soon."""
    return CheckResult(check, Severity.PROBLEM, found, where, remedy)
