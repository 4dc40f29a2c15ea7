"""The counts of the demo, and whether they are consistent."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Rows of the input, each counted once however often it was delivered.

    Attributes:
        rows, dirty: the rows of the input, and the dirty ones among them.
        sent: rows whose send was acknowledged.
        consumed: rows that the listener consumed successfully.
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
        """Describe the counts that are inconsistent."""
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
        """Return plain data for --json."""
        return dataclasses.asdict(self)
