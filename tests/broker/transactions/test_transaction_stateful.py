"""Any sequence of requests, time-outs, lost writes and coordinator moves keeps what transactions promise.

The responses are the model: a commit that was confirmed is a commit in every marker that follows, no partition that was
added is left out, and a producer that was replaced changes nothing any more.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream_broker.transactions.messages import Markers, ProducerResult
from millstream_broker.transactions.records import transaction_record
from millstream_broker.transactions.transaction import LAST_EPOCH, TransactionMetadata
from millstream_harness.transaction_machine import TIMEOUT_MS, Producer, TransactionMachine
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

PARTITIONS: list[TopicPartition] = [("a", 0), ("a", 1), ("b", 0)]
NONE = ErrorCode.NONE
LOST = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = TransactionMachine()
        self.machine.marks = False
        self.producers: list[Producer] = []
        """Those that started, oldest first; the last may go on."""
        self.added: set[TopicPartition] = set()
        """Confirmed for the open transaction."""
        self.confirmed: bool | None = None
        """The outcome that was confirmed for the transaction that is ending."""
        self.ends: list[tuple[Producer, bool]] = []
        """Of the present producer, with the ids and epochs that it used."""

    @property
    def metadata(self) -> TransactionMetadata | None:
        transaction = self.machine.shard.by_id.get("t")
        return None if transaction is None else transaction.metadata

    @rule(goes_on=st.booleans())
    def a_producer_starts(self, goes_on: bool) -> None:
        expected = self.producers[-1] if goes_on and self.producers else None
        result = self.machine.init(expected=expected)
        if result.error:
            assert result.error in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED)
            assert result == ProducerResult(result.error)
            if result.error is ErrorCode.CONCURRENT_TRANSACTIONS:
                self.added = set()  # aborted, if one was open
            return
        producer = result.producer_id, result.producer_epoch
        assert producer not in self.producers[:-1]
        if expected is None or producer != expected:
            self.producers.append(producer)
        self.added, self.confirmed = set(), None

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), version=st.sampled_from([0, 2]))
    def partitions_are_added(self, data: st.DataObject, partition: TopicPartition, version: int) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        error = self.machine.add(producer, partition, version=version)
        if producer != self.producers[-1]:
            assert error in (
                ErrorCode.PRODUCER_FENCED,
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )
        elif error is NONE:
            self.added.add(partition)
            self.confirmed = None
            assert self.machine.verify(producer, partition) == {partition: NONE}

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), commits=st.booleans(), raises_epoch=st.booleans())
    def a_transaction_is_ended(self, data: st.DataObject, commits: bool, raises_epoch: bool) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        result = self.machine.end(producer, commits=commits, raises_epoch=raises_epoch)
        if result.error:
            return
        metadata = self.metadata
        assert metadata is not None
        assert metadata.commits == commits or not metadata.state.is_ending
        if metadata.state.is_ending:
            self.confirmed = commits
            assert metadata.partitions >= self.added
        self.added = set()
        following = result.producer_id, result.producer_epoch
        if following != self.producers[-1]:
            self.producers.append(following)

    @precondition(lambda self: self.machine.markers.waiting)
    @rule(some=st.sets(st.sampled_from(PARTITIONS)))
    def markers_are_written(self, some: set[TopicPartition]) -> None:
        markers = self.machine.mark(some if some else None)
        self.check(markers)

    def check(self, markers: Markers) -> None:
        if self.confirmed is not None:
            assert markers.commits == self.confirmed
        assert markers.coordinator_epoch == self.machine.epoch

    @rule(share=st.sampled_from([0.1, 2.0]))
    def time_passes(self, share: float) -> None:
        self.machine.advance(int(TIMEOUT_MS * share))
        if self.machine.state() != "Ongoing":
            self.added = set()

    @rule(error=st.sampled_from(LOST), commits=st.booleans(), is_late=st.booleans(), stays=st.booleans())
    def the_write_of_an_end_is_lost(
        self, error: ErrorCode, commits: bool, is_late: bool, stays: bool
    ) -> None:
        if not self.producers or self.machine.state() != "Ongoing":
            return
        self.machine.holds = True
        replies = self.machine.call(
            lambda caller: self.machine.shard.end(
                caller, "t", self.producers[-1], commits=commits, raises_epoch=True
            )
        )
        if not self.machine.held:
            self.machine.holds = False
            return
        if not is_late:
            self.machine.store(error)
            self.machine.holds = False
            assert replies[0].error
            assert self.machine.state() == "Ongoing"
            return
        self.machine.late()
        self.machine.holds = False
        assert replies[0].error
        if stays:
            self.machine.store()
            metadata = self.metadata
            assert metadata is not None
            assert metadata.commits == commits
            self.added = set()
        else:
            self.machine.start()
            assert self.machine.state() == "Ongoing"
            assert self.machine.shard.by_id["t"].metadata.partitions >= self.added

    @rule()
    def the_coordinator_moves(self) -> None:
        before = self.metadata
        self.machine.start()
        after = self.metadata
        if before is not None and before.producer_epoch >= 0:
            assert after == replace(before, last_producer_epoch=-1)
            if before.state.is_ending:
                assert [each.partitions for each in self.machine.markers.waiting] == [before.partitions]

    @precondition(
        lambda self: self.metadata is not None and self.machine.state() in ("Empty", "CompleteCommit")
    )
    @rule()
    def epochs_are_nearly_used_up(self) -> None:
        metadata = self.metadata
        assert metadata is not None
        if metadata.producer_epoch < LAST_EPOCH - 2 and self.producers:
            raised = replace(metadata, producer_epoch=LAST_EPOCH - 1, last_producer_epoch=-1)
            self.machine.shard.by_id["t"].metadata = raised
            self.machine.log.append(transaction_record("t", raised))
            self.producers.append((raised.producer_id, raised.producer_epoch))

    @invariant()
    def one_transaction_is_open_or_ending(self) -> None:
        metadata = self.metadata
        if metadata is None:
            return
        assert metadata.producer_epoch <= LAST_EPOCH or metadata.state.is_ending
        if not metadata.state.is_ending and metadata.state.label != "Ongoing":
            assert not metadata.partitions
            assert not self.machine.markers.waiting
        assert len(self.machine.markers.waiting) <= 1


Transactions.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTransactions = Transactions.TestCase
