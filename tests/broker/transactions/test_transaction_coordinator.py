"""The transaction coordinator: requests of producers, in each version of transactions, and Kafka's errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_broker.transactions.checks import state_named
from millstream_broker.transactions.messages import ProducerResult, TransactionConfig
from millstream_broker.transactions.shard import SWEPT
from millstream_broker.transactions.transaction import (
    LAST_EPOCH,
    MAX_EPOCH,
    TransactionMetadata,
    TransactionState,
)
from millstream_harness.transaction_machine import (
    FIRST_PRODUCER_ID,
    START,
    TIMEOUT_MS,
    A,
    B,
    Producer,
    TransactionMachine,
    ongoing,
)
from millstream_kafka.protocol.errors import ErrorCode

CLEANUP_MS = 10_000
NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
CONCURRENT, INVALID_STATE = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
NOT_MAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def exhausted(machine: TransactionMachine) -> Producer:
    """A producer with the last epoch of its id."""
    producer = machine.started()
    transaction = machine.shard.by_id["t"]
    producer_id, _ = producer
    transaction.metadata = replace(transaction.metadata, producer_epoch=LAST_EPOCH)
    return producer_id, LAST_EPOCH


# --- InitProducerId


def test_a_new_transactional_id_gets_a_producer_id_and_epoch_0() -> None:
    machine = TransactionMachine()
    assert machine.init() == ProducerResult(NONE, FIRST_PRODUCER_ID, 0)
    assert machine.init("other") == ProducerResult(NONE, FIRST_PRODUCER_ID + 1, 0)


def test_a_second_producer_fences_the_first() -> None:
    machine = TransactionMachine()
    first = ongoing(machine)
    assert machine.init().error is CONCURRENT  # the open transaction is aborted first
    assert machine.state() == "CompleteAbort"
    second = machine.started()
    assert second == (first[0], first[1] + 2)
    assert machine.add(first, A) is FENCED
    assert machine.add(second, A) is NONE


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    machine = TransactionMachine()
    assert machine.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not machine.log


def test_the_shortest_and_the_longest_timeout_are_accepted() -> None:
    machine = TransactionMachine()
    assert machine.init(timeout_ms=1).error is NONE
    assert machine.init(timeout_ms=900_000).error is NONE


def test_a_fenced_producer_uses_up_no_producer_id() -> None:
    machine = TransactionMachine()
    ongoing(machine)
    assert machine.init().error is CONCURRENT
    assert machine.init("other").producer_id == FIRST_PRODUCER_ID + 1


def test_an_empty_transactional_id_is_refused() -> None:
    machine = TransactionMachine()
    assert machine.init("").error is ErrorCode.INVALID_REQUEST
    assert machine.end((1, 0), commits=True, transactional_id="").error is ErrorCode.INVALID_REQUEST


def test_a_producer_goes_on_with_its_id_and_a_higher_epoch() -> None:
    machine = TransactionMachine()
    first = machine.started()
    second = machine.started(expected=first)
    assert second == (first[0], first[1] + 1)
    assert machine.started(expected=first) == second  # a retry
    machine.started()
    assert machine.init(expected=second).error is FENCED  # another producer has started


def test_a_producer_goes_on_with_an_id_that_is_not_known() -> None:
    machine = TransactionMachine()
    assert machine.init(expected=(77, 5)) == ProducerResult(NONE, FIRST_PRODUCER_ID, 0)
    assert machine.init(expected=(77, 5)).error is FENCED


def test_an_id_without_more_epochs_is_replaced() -> None:
    machine = TransactionMachine()
    producer = exhausted(machine)
    assert machine.init() == ProducerResult(NONE, FIRST_PRODUCER_ID + 1, 0)
    assert machine.init(expected=producer).error is FENCED


def test_an_id_without_more_epochs_is_replaced_when_it_is_fenced() -> None:
    machine = TransactionMachine()
    producer = exhausted(machine)
    assert machine.add(producer, A) is NONE
    assert machine.init().error is CONCURRENT
    assert machine.init() == ProducerResult(NONE, FIRST_PRODUCER_ID + 1, 1)


def test_only_the_last_epoch_of_the_id_before_is_a_retry() -> None:
    machine = TransactionMachine()
    producer_id, last = exhausted(machine)
    assert machine.init(expected=(producer_id, last)).producer_id == FIRST_PRODUCER_ID + 1
    assert machine.init(expected=(producer_id, last - 1)).error is FENCED
    assert machine.init(expected=(producer_id + 77, last)).error is FENCED


def test_a_retry_after_the_id_was_replaced_gets_the_same_one() -> None:
    machine = TransactionMachine()
    producer = exhausted(machine)
    replaced = machine.init(expected=producer)
    assert replaced == ProducerResult(NONE, FIRST_PRODUCER_ID + 1, 0)
    assert machine.init(expected=producer) == replaced


# --- adding and verifying partitions


def test_only_partitions_that_were_added_are_verified() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    assert machine.verify(producer, A, B) == {A: NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert machine.verify((producer[0] + 1, producer[1]), A) == {A: NOT_MAPPED}
    assert machine.verify((producer[0], producer[1] + 1), A) == {A: FENCED}
    assert machine.verify(producer, A, transactional_id="unknown") == {A: NOT_MAPPED}


def test_partitions_that_are_there_are_added_without_a_write() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    stored = len(machine.log)
    assert machine.add(producer, A) is NONE
    assert len(machine.log) == stored
    assert machine.add(producer, A, B) is NONE
    assert len(machine.log) == stored + 1


def test_nothing_is_added_while_a_transaction_ends() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine, version=0)
    machine.marks = False
    assert machine.end(producer, commits=True, raises_epoch=False).error is NONE
    assert machine.add(producer, B) is CONCURRENT
    assert machine.verify(producer, A) == {A: CONCURRENT}
    assert machine.init().error is CONCURRENT


# --- EndTxn


def test_each_end_raises_the_epoch_and_markers_carry_it() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    raised = producer[0], producer[1] + 1
    assert machine.end(producer, commits=True) == ProducerResult(NONE, *raised)
    (markers,) = machine.markers.waiting
    assert (markers.producer_id, markers.producer_epoch, markers.commits) == (*raised, True)
    assert (markers.transaction_version, markers.coordinator_epoch) == (2, machine.epoch)
    assert machine.end(producer, commits=True).error is CONCURRENT  # a retry, while markers are written
    assert machine.end(producer, commits=False).error is INVALID_STATE
    machine.mark()
    assert machine.state() == "CompleteCommit"
    assert machine.end(producer, commits=True) == ProducerResult(NONE, *raised)
    assert machine.end(producer, commits=False).error is INVALID_STATE


def test_only_a_retry_is_asked_to_wait_for_the_markers() -> None:
    machine = TransactionMachine()
    producer_id, epoch = ongoing(machine)
    machine.marks = False
    assert machine.end((producer_id, epoch), commits=True).error is NONE
    assert machine.end((producer_id, epoch + 1), commits=True) == ProducerResult(FENCED)
    assert machine.end((producer_id, epoch), commits=True) == ProducerResult(CONCURRENT)


def test_the_first_end_in_version_2_waits_for_one_in_an_older_version() -> None:
    machine = TransactionMachine()
    producer_id, epoch = ongoing(machine, version=0)
    machine.marks = False
    assert machine.end((producer_id, epoch), commits=True, raises_epoch=False).error is NONE
    assert machine.end((producer_id, epoch), commits=True).error is CONCURRENT
    assert machine.end((producer_id, epoch + 5), commits=True).error is FENCED


@pytest.mark.parametrize("raises_epoch", [True, False])
def test_an_end_uses_up_no_producer_id(raises_epoch: bool) -> None:
    machine = TransactionMachine()
    assert machine.end(ongoing(machine), commits=True, raises_epoch=raises_epoch).error is NONE
    assert machine.init("other").producer_id == FIRST_PRODUCER_ID + 1


def test_in_older_versions_the_epoch_stays() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine, version=0)
    for _ in range(2):
        assert machine.end(producer, commits=False, raises_epoch=False) == ProducerResult(NONE, *producer)
    assert machine.state() == "CompleteAbort"
    assert machine.end(producer, commits=True, raises_epoch=False).error is INVALID_STATE


def test_in_older_versions_a_retry_waits_for_the_markers() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine, version=0)
    machine.marks = False
    for error in (NONE, CONCURRENT):
        assert machine.end(producer, commits=True, raises_epoch=False).error is error
    metadata = machine.shard.describe("t").metadata
    assert metadata is not None
    assert metadata.client_version == 0
    machine.mark()
    assert machine.end(producer, commits=True, raises_epoch=False) == ProducerResult(NONE, *producer)


def test_the_end_keeps_the_time_of_the_beginning() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    machine.advance(100)
    assert machine.end(producer, commits=True).error is NONE
    metadata = machine.shard.describe("t").metadata
    assert metadata is not None
    assert (metadata.start_timestamp, metadata.update_timestamp) == (START, START + 100)


def test_an_empty_transaction_begins_as_it_ends() -> None:
    machine = TransactionMachine()
    producer = machine.started()
    machine.advance(100)
    assert machine.end(producer, commits=False).error is NONE
    metadata = machine.shard.describe("t").metadata
    assert metadata is not None
    assert metadata.start_timestamp == START + 100


def test_more_partitions_leave_the_time_of_the_beginning() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.advance(100)
    assert machine.add(producer, B) is NONE
    metadata = machine.shard.describe("t").metadata
    assert metadata is not None
    assert metadata.start_timestamp == START


def test_an_earlier_producer_ends_no_empty_transaction() -> None:
    machine = TransactionMachine()
    first = machine.started()
    machine.started()
    for commits in (True, False):
        assert machine.end(first, commits=commits).error is FENCED


def test_an_epoch_before_the_last_one_ends_nothing() -> None:
    machine = TransactionMachine()
    first = ongoing(machine)
    second = machine.end(first, commits=True)
    assert machine.add((second.producer_id, second.producer_epoch), A) is NONE
    assert machine.end((second.producer_id, second.producer_epoch), commits=True).error is NONE
    for commits in (True, False):
        assert machine.end(first, commits=commits).error is FENCED


def test_an_empty_transaction_is_aborted_in_version_2_only() -> None:
    machine = TransactionMachine()
    producer = machine.started()
    for raises_epoch in (True, False):
        assert machine.end(producer, commits=True, raises_epoch=raises_epoch).error is INVALID_STATE
    assert machine.end(producer, commits=False, raises_epoch=False).error is INVALID_STATE
    assert machine.end(producer, commits=False) == ProducerResult(NONE, producer[0], producer[1] + 1)
    assert machine.state() == "CompleteAbort"


def test_an_empty_abort_after_a_commit_is_none_of_its_retries() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    committed = machine.end(producer, commits=True)
    following = committed.producer_id, committed.producer_epoch
    assert machine.end(following, commits=True).error is INVALID_STATE
    assert machine.end(following, commits=False) == ProducerResult(NONE, following[0], following[1] + 1)


def test_the_end_of_an_exhausted_id_hands_out_the_next_one() -> None:
    machine = TransactionMachine()
    producer = exhausted(machine)
    assert machine.add(producer, A) is NONE
    machine.marks = False
    following = ProducerResult(NONE, FIRST_PRODUCER_ID + 1, 0)
    assert machine.end(producer, commits=True) == following
    markers = machine.mark()
    assert (markers.producer_id, markers.producer_epoch) == (producer[0], MAX_EPOCH)
    assert machine.end(producer, commits=True) == following
    assert machine.add((following.producer_id, 0), B) is NONE


def test_an_end_of_another_producer_is_refused() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    for raises_epoch in (True, False):
        for change, error in (((1, 0), NOT_MAPPED), ((0, 1), FENCED), ((0, -1), FENCED)):
            stranger = producer[0] + change[0], producer[1] + change[1]
            assert machine.end(stranger, commits=True, raises_epoch=raises_epoch).error is error
    assert machine.state() == "Ongoing"


# --- time-outs


def timed_out(machine: TransactionMachine) -> Producer:
    producer = ongoing(machine)
    machine.advance(TIMEOUT_MS + CLEANUP_MS + 1)
    assert machine.state() == "CompleteAbort"
    return producer


def test_after_a_timeout_an_abort_in_version_2_gets_the_raised_epoch() -> None:
    machine = TransactionMachine()
    producer = timed_out(machine)
    assert machine.end(producer, commits=True).error is INVALID_STATE
    assert machine.end(producer, commits=False) == ProducerResult(NONE, producer[0], producer[1] + 1)


def test_after_a_timeout_the_producer_goes_on_with_the_raised_epoch() -> None:
    machine = TransactionMachine()
    producer = timed_out(machine)
    assert machine.init(expected=producer) == ProducerResult(NONE, producer[0], producer[1] + 1)


def test_after_a_timeout_the_other_requests_are_fenced() -> None:
    machine = TransactionMachine()
    producer = timed_out(machine)
    assert machine.end(producer, commits=False, raises_epoch=False).error is FENCED
    assert machine.add(producer, A) is FENCED
    assert machine.verify(producer, A) == {A: FENCED}


def test_a_transaction_lasts_until_its_timeout() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.advance(TIMEOUT_MS)
    assert machine.state() == "Ongoing"
    assert machine.end(producer, commits=True).error is NONE


@pytest.mark.parametrize("server_version", [0, 1])
def test_a_timeout_raises_the_epoch_in_older_versions_as_well(server_version: int) -> None:
    machine = TransactionMachine(server_version=server_version)
    producer = ongoing(machine, version=0)
    machine.advance(TIMEOUT_MS + CLEANUP_MS + 1)
    assert machine.end(producer, commits=False, raises_epoch=False).error is FENCED
    assert machine.started() == (producer[0], producer[1] + 2)


# --- expiry


def test_an_id_expires_after_its_time_unless_a_transaction_is_open() -> None:
    idle = TransactionMetadata(1, 0, update_timestamp=1000)
    assert [idle.is_expired(now, 500) for now in (1499, 1500)] == [False, True]
    assert not replace(idle, state=TransactionState.ONGOING).is_expired(5000, 500)


def test_an_idle_transactional_id_expires_with_a_tombstone() -> None:
    machine = TransactionMachine(
        TransactionConfig(transactional_id_expiration_ms=1000, transaction_state_log_num_partitions=1)
    )
    ongoing(machine)
    machine.started("idle")
    machine.advance(CLEANUP_MS + 1)
    assert machine.state("idle") == "Empty"  # the check is made once an hour
    machine.advance(3_600_001)
    assert machine.state("idle") == ""
    assert None in [value for _, value in machine.log]
    assert machine.state() == "CompleteAbort"  # aborted just now: it expires at the next check
    machine.start()
    assert machine.state("idle") == ""


@pytest.mark.parametrize("version", [0, 2])
def test_a_check_of_many_ids_takes_turns(version: int) -> None:
    """Each turn looks at some of them, and ids that have come or gone meanwhile do not matter."""
    config = TransactionConfig(transactional_id_expiration_ms=1000, transaction_state_log_num_partitions=1)
    machine = TransactionMachine(config)
    names = [f"id-{number}" for number in range(2 * SWEPT + 1)]
    for name in names:
        producer = machine.started(name)
        assert machine.add(producer, A, transactional_id=name, version=version) is NONE
    turns = []
    machine.advance(TIMEOUT_MS + CLEANUP_MS)
    while (left := sum(machine.state(name) == "Ongoing" for name in names)) and len(turns) < 9:
        turns.append(left)
        machine.advance(1)
    assert turns == [SWEPT + 1, 1]
    machine.advance(3_600_000 - TIMEOUT_MS - CLEANUP_MS)
    assert len(machine.shard.by_id) == SWEPT + 1
    machine.started("new")
    machine.advance(1)
    machine.advance(1)
    assert set(machine.shard.by_id) == {"new"}
    machine.advance(3_600_000)
    assert not machine.shard.by_id, "the next check comes in time"


def test_a_check_outlives_the_partition_that_it_began_with() -> None:
    config = TransactionConfig(transactional_id_expiration_ms=1000, transaction_state_log_num_partitions=1)
    machine = TransactionMachine(config)
    for number in range(SWEPT + 1):
        machine.started(f"id-{number}")
    machine.advance(3_600_000)
    assert len(machine.shard.by_id) == 1
    machine.shard.unload(0)
    machine.advance(1)
    assert not machine.shard.by_id


def test_states_have_names() -> None:
    assert [state_named(state.label) for state in TransactionState] == list(TransactionState)
    assert state_named("Committed") is None
