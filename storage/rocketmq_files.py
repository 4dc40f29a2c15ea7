"""Write RocketMQ's files of settings and offsets, and read what RocketMQ wrote.

    config/topics.json, subscriptionGroup.json, consumerOffset.json, delayOffset.json, messageRequestMode.json

The state journal holds the tables; these files are copies of them, at most some seconds old while a broker runs and
exact after it was closed. Each ends with a checksum of ours. RocketMQ ignores it and does not write it: a file without
it was written by RocketMQ (or by hand) since, and then its content goes into the tables. `dataVersion` does not tell
that, because RocketMQ's consumerOffset.json keeps the version that it has loaded for its first 500 commits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil, json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.tables.offset_files import parse_consumer_offsets, parse_delay_offsets
from raymq.storage.tables.request_mode import read_modes
from raymq.storage.tables.settings_table import SettingsTable
from raymq.storage.tables.state_tables import StateTables

#: An event of a table.
TableEvent = tuple[JournaledTable, Fields]
#: The key of the checksum.
_SEAL: Final = "raymqCrc"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    """One of RocketMQ's files.

    Attributes:
        name: its name below `config/`.
        table: the table that it copies.
        parse: reads its object, and raises one of `json_file.DECODE_ERRORS` if it has another form.
        events: returns the events that bring an object's content into the table.
        encode: returns the content, without the checksum.
    """

    name: str
    table: JournaledTable
    parse: Callable[[Mapping[str, Any]], object]
    events: Callable[[Mapping[str, Any]], Iterator[Fields]]
    encode: Callable[[], str]


class RocketMQFiles:
    """The files of one store directory.

    `begin_export` belongs to the store's thread; the function that it returns to any thread, one at a time.
    """

    def __init__(self, config: Path, tables: StateTables, newest_of: Callable[[JournaledTable], int]) -> None:
        """Keep the folder of the files and the tables that they copy.

        `newest_of` returns the number of a table's newest event.
        """
        self._config = config
        self._tables = tables
        self._newest_of = newest_of
        self._versions = {"consumerOffset.json": DataVersion(), "delayOffset.json": DataVersion()}
        self._settled_delays: tuple[dict[int, int], int] = {}, 0
        #: Which content each file has: the number of the newest event, or the settled offsets of the delay levels.
        self._exported: dict[str, object] = {}
        self._files = [
            _File(
                "topics.json",
                tables.topics,
                tables.topics.parse,
                partial(_settings, tables.topics),
                tables.topics.to_json,
            ),
            _File(
                "subscriptionGroup.json",
                tables.groups,
                tables.groups.parse,
                partial(_settings, tables.groups),
                tables.groups.to_json,
            ),
            _File(
                "consumerOffset.json",
                tables.consumer_offsets,
                parse_consumer_offsets,
                lambda raw: tables.consumer_offsets.raise_offsets(parse_consumer_offsets(raw).offsets),
                self._encoded_consumers,
            ),
            _File(
                "delayOffset.json",
                tables.delay_offsets,
                parse_delay_offsets,
                lambda raw: tables.delay_offsets.raise_offsets(parse_delay_offsets(raw).offsets),
                self._encoded_delays,
            ),
            _File(
                "messageRequestMode.json",
                tables.request_modes,
                read_modes,
                tables.request_modes.replace_all,
                tables.request_modes.to_json,
            ),
        ]

    # -- read ----------------------------------------------------------------------------------------------------

    def foreign_events(self, *, has_tables: bool, is_lost: bool = False) -> list[TableEvent]:
        """Return the events that bring what RocketMQ has written into the tables.

        Args:
            has_tables: the tables have been read from a journal. Else all files are read, as in a directory that only
                RocketMQ has used.
            is_lost: the journal has lost events: the files that are ours, too, may have what it lacks.

        Raises:
            StoreCorrupt: without a journal, a file and its `.bak` are unreadable.
            StoreBusy, StoreFailed: a file cannot be read now.
        """
        found: list[TableEvent] = []
        for file in self._files:
            raw = self._foreign(file) if has_tables and not is_lost else self._readable(file, must=not has_tables)
            if raw:
                if has_tables:
                    _log.warning("%s was not written by RayMQ: its content is taken", self._config / file.name)
                found += [(file.table, fields) for fields in file.events(raw)]
                if (version := self._versions.get(file.name)) is not None:
                    of_file = DataVersion.from_json(raw.get("dataVersion"))
                    self._versions[file.name] = max(version, of_file, key=lambda each: each.counter)
        return found

    def _foreign(self, file: _File) -> Mapping[str, Any] | None:
        """Return the object in a file that RocketMQ wrote, or None without one."""
        try:
            text = fileutil.read_whole(self._config / file.name).decode()
            raw = json_file.parse(text) if text.strip() else {}
            if _SEAL in raw or json_file.ends_with_checksum(text.encode()):
                if not json_file.is_as_written(text.encode()):
                    _log.warning(
                        "%s was changed by hand, which has no effect: it is a copy. Remove %s from it before a start, "
                        "and its content is taken",
                        *(self._config / file.name, _SEAL),
                    )
                return None
            file.parse(raw)
        except FileNotFoundError:
            return None
        except json_file.DECODE_ERRORS as error:
            _log.warning("%s is not readable, and is written again: %s", self._config / file.name, error)
            return None
        return raw

    def _readable(self, file: _File, *, must: bool) -> Mapping[str, Any] | None:
        def interpret(raw: dict[str, Any]) -> dict[str, Any]:
            file.parse(raw)
            return raw

        try:
            return json_file.load_as(self._config / file.name, interpret)
        except StoreCorrupt:
            if must:
                raise
            return None

    # -- write ---------------------------------------------------------------------------------------------------

    def begin_export(self) -> Callable[[], None]:
        """Return a function that writes the files of the tables that have changed.

        The function raises StoreFull or StoreFailed; then some of the files are not written.
        """
        self._settled_delays = self._tables.delay_offsets.settled()
        return self._export

    def _export(self) -> None:
        for file in self._files:
            is_of_delays = file.table is self._tables.delay_offsets
            content_of = self._settled_delays if is_of_delays else self._newest_change(file.table)
            if self._exported.get(file.name) == content_of:
                continue
            content = file.encode()
            if file.name in self._versions:
                self._versions[file.name] = version = self._versions[file.name].next()
                content = f'{{"dataVersion":{json_file.encode(version.to_json())},{content[1:]}'
            failpoint("export.before_file")
            fileutil.make_folder(self._config)
            fileutil.replace(self._config / file.name, json_file.with_checksum(content.encode()))
            self._exported[file.name] = content_of

    def _newest_change(self, table: JournaledTable) -> int:
        """Return the newest event that changed a table, or deleted a topic."""
        return max(self._newest_of(table), self._newest_of(self._tables.deleted_topics))

    def _encoded_consumers(self) -> str:
        """Return the content of RocketMQ's file of consumers' offsets.

        It is made group by group, so that other threads get the interpreter in between. Each copy of a table is one
        atomic operation of the interpreter.
        """
        table = self._tables.consumer_offsets
        resets = table.resets.copy()
        rows: list[str] = []
        groups: dict[str, list[str]] = {}
        for group, topics in table.offsets.copy().items():
            time.sleep(0)
            queues = topics.copy()
            groups[group] = list(queues)
            rows += [
                f"{json_file.encode(f'{name}@{group}')}:{json_file.encode(q.copy())}" for name, q in queues.items()
            ]
        content: dict[str, Any] = {"groupTopicMap": groups}
        if resets:
            content["raymqResets"] = sorted(resets)
        return f'{json_file.encode(content)[:-1]},"offsetTable":{{{",".join(rows)}}}}}'

    def _encoded_delays(self) -> str:
        offsets, log_end = self._settled_delays
        table = {str(level): offset for level, offset in offsets.items()}
        return json_file.encode({"offsetTable": table, "raymqLogEnd": log_end})


def _settings(table: SettingsTable[Any], raw: Mapping[str, Any]) -> Iterator[Fields]:
    """Return the events of a file of settings.

    Changes that the file's writer cannot have seen stay: they were made after the file that it had read.
    """
    later = table.changed_after(DataVersion.from_json(raw.get("dataVersion")).counter)
    return table.replace_all(raw, later)
