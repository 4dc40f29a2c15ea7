"""What the demo counted, and whether it adds up."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """All in rows of the input, each counted once however often it was delivered.

    Attributes:
        rows, dirty: what the input has.
        sent: rows whose send was acknowledged.
        consumed: rows that the listener took.
        dead_letters: rows in the group's dead-letter queue.
        spark_rows, spark_dead_letters: the same two topics as Spark read them.
    """

    rows: int = 0
    sent: int = 0
    consumed: int = 0
    dirty: int = 0
    dead_letters: int = 0
    spark_rows: int = 0
    spark_dead_letters: int = 0
    ok: bool = False

    def differences(self) -> list[str]:
        """What does not add up, in words."""
        checks = (
            (self.sent == self.rows, f"{self.sent} of {self.rows} rows were acknowledged"),
            (
                self.consumed + self.dead_letters == self.rows,
                f"{self.consumed} consumed and {self.dead_letters} dead are not {self.rows}",
            ),
            (self.dead_letters == self.dirty, f"{self.dead_letters} dead letters for {self.dirty} dirty rows"),
            (self.spark_rows == self.rows, f"Spark read {self.spark_rows} of {self.rows} rows"),
            (
                self.spark_dead_letters == self.dirty,
                f"Spark read {self.spark_dead_letters} dead letters for {self.dirty} dirty rows",
            ),
        )
        return [text for holds, text in checks if not holds]

    def as_dict(self) -> dict[str, int | bool]:
        """Plain data for --json."""
        return dataclasses.asdict(self)
