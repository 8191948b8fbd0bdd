"""The transaction coordinator: writes and markers that fail, are late, or are lost with the coordinator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_broker.transactions.messages import ProducerResult
from millstream_broker.transactions.shard import RETRY_MS
from millstream_harness.transaction_machine import TIMEOUT_MS, A, B, TransactionMachine, ongoing
from millstream_kafka.protocol.errors import ErrorCode

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_write_that_fails_changes_nothing() -> None:
    machine = TransactionMachine()
    producer = machine.started()
    machine.holds = True
    reply = machine.call(lambda caller: machine.shard.add_partitions(caller, "t", producer, [A], 2))
    assert not reply
    assert machine.add(producer, A) is CONCURRENT
    machine.store(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert reply == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert machine.state() == "Empty"
    machine.holds = False
    assert machine.add(producer, A) is NONE


def test_an_id_whose_first_write_fails_is_not_kept() -> None:
    machine = TransactionMachine()
    machine.holds = True
    reply = machine.call(lambda caller: machine.shard.init_producer_id(caller, "t", TIMEOUT_MS, None))
    machine.store(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert reply == [ProducerResult(ErrorCode.NOT_COORDINATOR)]
    assert not machine.shard.by_id


def test_a_late_commit_is_pending_until_it_is_stored() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.holds = True
    reply = machine.call(
        lambda caller: machine.shard.end(caller, "t", producer, commits=True, raises_epoch=True)
    )
    machine.late()
    assert reply == [ProducerResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    assert machine.end(producer, commits=False).error is CONCURRENT  # the outcome may be fixed
    assert not machine.markers.waiting
    machine.holds = False
    machine.store()
    assert len(reply) == 1
    assert machine.end(producer, commits=True).error is NONE


def test_a_completion_that_fails_is_written_again() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    assert machine.end(producer, commits=True).error is NONE
    machine.holds = True
    machine.mark()
    machine.store(ErrorCode.NOT_ENOUGH_REPLICAS)
    machine.holds = False
    machine.advance(RETRY_MS - 1)
    assert machine.state() == "PrepareCommit"
    machine.advance(1)
    assert machine.state() == "CompleteCommit"


@pytest.mark.parametrize("commits", [True, False])
def test_a_coordinator_goes_on_with_markers_that_it_loads(commits: bool) -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    assert machine.end(producer, commits=commits).error is NONE
    (before,) = machine.markers.waiting
    machine.start()
    (markers,) = machine.markers.waiting
    assert markers.coordinator_epoch == before.coordinator_epoch + 1
    assert (markers.commits, markers.partitions) == (commits, {A})
    machine.mark()
    assert machine.state() == ("CompleteCommit" if commits else "CompleteAbort")


def test_a_coordinator_that_is_elected_again_sends_its_markers_in_the_new_epoch() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    assert machine.add(producer, B) is NONE
    machine.marks = False
    assert machine.end(producer, commits=True).error is NONE
    machine.mark([B])
    (before,) = machine.markers.waiting
    machine.shard.set_epoch(0, before.coordinator_epoch)  # nothing has changed: B is not marked again
    assert machine.markers.waiting == [before]
    machine.shard.set_epoch(0, before.coordinator_epoch + 2)  # another one had the epoch between them
    (markers,) = machine.markers.waiting
    again = replace(before, coordinator_epoch=before.coordinator_epoch + 2, partitions=frozenset({A, B}))
    assert markers == again
    machine.shard.markers_written(before, {A, B})
    machine.advance(0)
    assert machine.state() == "PrepareCommit"
    machine.mark()
    assert machine.state() == "CompleteCommit"


def test_an_open_transaction_survives_its_coordinator() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.start()
    assert machine.verify(producer, A) == {A: NONE}
    assert machine.end(producer, commits=True).error is NONE


def test_markers_of_an_earlier_leadership_complete_nothing() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    assert machine.end(producer, commits=True).error is NONE
    (stale,) = machine.markers.waiting
    machine.start()
    machine.shard.markers_written(stale, stale.partitions)
    machine.advance(0)
    assert machine.state() == "PrepareCommit"


def test_markers_of_an_earlier_transaction_complete_nothing() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    second = machine.end(producer, commits=True)
    stale = machine.mark()
    assert machine.add((second.producer_id, second.producer_epoch), A) is NONE
    assert machine.end((second.producer_id, second.producer_epoch), commits=True).error is NONE
    machine.shard.markers_written(stale, {A})
    machine.shard.markers_written(replace(stale, transactional_id="unknown"), {A})
    machine.advance(0)
    assert machine.state() == "PrepareCommit"


def test_a_coordinator_that_lost_the_partition_redirects() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    machine.marks = False
    machine.holds = True
    reply = machine.call(
        lambda caller: machine.shard.end(caller, "t", producer, commits=True, raises_epoch=True)
    )
    machine.shard.unload(0)
    machine.advance(0)
    assert reply == [ProducerResult(ErrorCode.NOT_COORDINATOR)]
    assert machine.add(producer, A) is ErrorCode.NOT_COORDINATOR
    assert not machine.markers.waiting


def test_a_coordinator_that_loads_asks_to_retry() -> None:
    machine = TransactionMachine()
    machine.shard.unload(0)
    machine.shard.state.begin_load(0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert machine.init().error is loading
    assert machine.end((1, 1), commits=True).error is loading
    assert machine.verify((1, 1), A) == {A: loading}


def test_partitions_without_a_marker_are_described() -> None:
    machine = TransactionMachine()
    producer = ongoing(machine)
    assert machine.add(producer, B) is NONE
    machine.marks = False
    assert machine.end(producer, commits=True).error is NONE
    machine.mark([A])
    described = machine.shard.describe("t").metadata
    assert described is not None
    assert described.partitions == {B}
    machine.mark([B])
    assert machine.state() == "CompleteCommit"
