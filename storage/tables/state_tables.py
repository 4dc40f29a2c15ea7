"""The tables of a store that are kept in its state journal."""

from __future__ import annotations

from raymq.storage.journal.journaled_table import JournaledTable
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from raymq.storage.tables.coordinator_table import CoordinatorTable, KnownBrokers
from raymq.storage.tables.counted_time import CountedTime
from raymq.storage.tables.delay_level_history import DelayLevelHistory
from raymq.storage.tables.delay_offsets import DelayOffsets
from raymq.storage.tables.deleted_topics import DeletedTopics
from raymq.storage.tables.dynamic_config import DynamicConfigTable
from raymq.storage.tables.group_config import GroupConfigs
from raymq.storage.tables.in_flight_messages import InFlightTable
from raymq.storage.tables.producer_states import ProducerStates
from raymq.storage.tables.quarantined_messages import QuarantinedMessages
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from raymq.storage.tables.request_mode import RequestModes
from raymq.storage.tables.staged_records import StagedRecords
from raymq.storage.tables.stream_plan_store import StreamPlanStore
from raymq.storage.tables.topic_config import TopicConfigs
from raymq.storage.tables.transaction_checks import TransactionChecks
from raymq.storage.tables.write_transactions import WriteTransactionStore


class StateTables:
    """All tables of the state journal, empty at first. docs/internals/state.md lists their numbers and events."""

    def __init__(self) -> None:
        self.topics = TopicConfigs()
        self.groups = GroupConfigs()
        self.consumer_offsets = ConsumerOffsets()
        self.delay_offsets = DelayOffsets()
        self.in_flight = InFlightTable()
        self.request_modes = RequestModes()
        self.coordinators = CoordinatorTable()
        self.known_brokers = KnownBrokers()
        self.stream_plans = StreamPlanStore()
        self.writes = WriteTransactionStore()
        self.staged = StagedRecords()
        self.transaction_checks = TransactionChecks()
        self.recovery_epochs = RecoveryEpochs()
        self.counted_time = CountedTime()
        self.quarantined = QuarantinedMessages()
        self.settings = DynamicConfigTable()
        self.delay_levels = DelayLevelHistory()
        self.producer_states = ProducerStates()
        others: list[JournaledTable] = [table for table in vars(self).values() if isinstance(table, JournaledTable)]
        self.deleted_topics = DeletedTopics(others)
        self._all = sorted([self.deleted_topics, *others], key=lambda table: table.NUMBER)

    def all(self) -> list[JournaledTable]:
        """Return the tables in the order of their numbers."""
        return self._all
