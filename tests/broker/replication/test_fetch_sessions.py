"""A leader's responses to its followers: sessions, news, and refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.replication import fetch_sessions
from millstream_broker.replication.fetch_responses import current_leader
from millstream_broker.security.session import PeerBroker
from millstream_harness.clients import broker, consumer
from millstream_harness.fetch_sessions import (
    EPOCH,
    FULL,
    NO_SESSION,
    SIZE,
    fetch,
    follower,
    leading,
    refusal,
    size,
    summary,
    told,
    two_partitions,
    wanted,
)
from millstream_harness.replica import OTHERS, THEM, US, Clock, answered, broker_record, led_by, state, topic
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    ForgottenTopic,
    LeaderIdAndEpoch,
    PartitionData,
    next_session_epoch,
)

# News


async def test_an_answer_has_the_records_and_how_far_they_are_safe(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        for _ in range(3):
            leader.append()
        leader.fetch(wanted(0, 2))
        leader.partition().log.delete_records_before(1)
        (data,) = leader.fetch(wanted(0, 2, partition_max_bytes=SIZE))
        assert size(data) == SIZE
        assert data == PartitionData(0, 0, 2, 2, 1, records=data.records)


async def test_a_session_says_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        answer = leader.ask(wanted(0), wanted(1))
        assert isinstance(answer, FetchResponse)
        assert (answer.throttle_time_ms, answer.error_code) == (0, 0)
        nothing = [PartitionData(index, 0, 0, 0, 0, records=b"") for index in (0, 1)]
        assert answer.responses == [FetchableTopicResponse("t", partitions=nothing)]
        assert leader.fetch() == []
        leader.append(1)
        (data,) = leader.fetch()
        assert (data.partition_index, data.high_watermark, size(data)) == (1, 0, SIZE)
        (data,) = leader.fetch(wanted(1, 1))
        assert (data.partition_index, data.high_watermark, size(data)) == (1, 1, 0)


async def test_a_partition_without_news_does_not_keep_those_of_the_next_back(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.append(1)
        leader.fetch(wanted(0), wanted(1, 1))
        assert leader.fetch() == []
        assert summary(leader.fetch(wanted(0), wanted(1, 0))) == {1: (0, SIZE)}


async def test_a_high_watermark_that_moves_is_news(tmp_path: Path) -> None:
    async with leading(tmp_path, two_partitions(US, THEM, OTHERS)) as leader:
        leader.append()
        leader.fetch(wanted(0, 1))
        assert leader.fetch() == []
        answered(leader.sessions, fetch(wanted(0, 1), replica=OTHERS), follower(OTHERS), 12)
        (data,) = leader.fetch()
        assert (data.high_watermark, size(data)) == (1, 0)


async def test_only_a_request_tells_what_a_follower_has(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0))
        leader.append()
        assert summary(leader.fetch()) == {0: (0, SIZE)}
        isr = leader.partition().isr
        assert isr is not None
        assert (isr.followers[THEM].log_end, isr.followers[THEM].leader_end) == (0, 0)


async def test_a_partition_that_is_forgotten_has_no_news(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0), wanted(1))
        forgotten = [ForgottenTopic("t", partitions=[0, 7]), ForgottenTopic("unknown", partitions=[0])]
        leader.append(0)
        leader.append(1)
        assert summary(leader.fetch(forgotten_topics_data=forgotten)) == {1: (0, SIZE)}
        assert [len(leader.partition(index).followers) for index in (0, 1)] == [0, 1]


# Limits


async def test_the_first_batch_goes_out_whatever_its_size_and_the_next_only_where_there_is_room(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as leader:
        for index in (0, 1):
            leader.append(index)
            leader.append(index)
        answer = leader.fetch(wanted(0), wanted(1), max_bytes=1)
        assert summary(answer) == {0: (0, SIZE), 1: (0, 0)}
        answer = leader.fetch(wanted(0, 1), max_bytes=2 * SIZE - 1)
        assert summary(answer) == {1: (0, SIZE), 0: (0, 0)}, "what had no room is first the next time"
        answer = leader.fetch(wanted(1, 1), max_bytes=2 * SIZE)
        assert summary(answer) == {0: (0, SIZE), 1: (0, SIZE)}


async def test_a_partition_has_a_limit_of_its_own(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        for _ in range(3):
            leader.append()
        assert summary(leader.fetch(wanted(0, partition_max_bytes=2 * SIZE))) == {0: (0, 2 * SIZE)}


async def test_the_brokers_limit_counts_too(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.world.limit(max_bytes=2 * SIZE)
        for _ in range(3):
            leader.append()
        assert summary(leader.fetch(wanted(0))) == {0: (0, 2 * SIZE)}


# Waiting


async def test_an_answer_waits_as_long_as_the_follower_says(tmp_path: Path, clock: Clock) -> None:
    async with leading(tmp_path) as leader:
        assert isinstance(leader.ask(wanted(0)), FetchResponse)
        waiting = leader.wait(max_wait_ms=500)
        await clock.advance(0.4999)
        assert not waiting.done()
        await clock.advance(0.0002)
        assert told(waiting.result()) == []
        assert waiting.result().session_id == leader.next[0]


async def test_an_answer_waits_for_a_millisecond_too(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0))
        assert not leader.wait(max_wait_ms=1).done()


async def test_no_answer_waits_until_the_connection_would_be_closed_as_idle(
    tmp_path: Path, clock: Clock
) -> None:
    async with leading(tmp_path) as leader:
        leader.world.limit(max_wait_s=0.25)
        leader.fetch(wanted(0))
        waiting = leader.wait(max_wait_ms=500)
        await clock.advance(0.25)
        assert waiting.done()


async def test_enough_bytes_are_answered_at_once(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.append()
        answer = leader.ask(wanted(0), min_bytes=SIZE, max_wait_ms=500)
        assert isinstance(answer, FetchResponse)


async def test_what_is_missing_of_enough_bytes_is_waited_for(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0), wanted(1))
        leader.append(0)
        waiting = leader.wait(min_bytes=3 * SIZE)
        leader.append(1)
        await turns()
        assert not waiting.done()
        leader.append(1)
        await turns()
        assert summary(told(waiting.result())) == {0: (0, SIZE), 1: (0, 2 * SIZE)}


async def test_a_wait_does_not_raise_the_limit(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0), wanted(1))
        leader.append(0)
        waiting = leader.wait(min_bytes=2 * SIZE, max_bytes=SIZE + 10)
        leader.append(1)
        leader.append(1)
        await turns()
        assert summary(told(waiting.result())) == {0: (0, SIZE)}
        assert summary(leader.fetch(wanted(0, 1))) == {0: (0, 0), 1: (0, 2 * SIZE)}


async def test_news_of_a_partition_replaces_what_was_read_of_it_before_the_wait(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        waiting = leader.wait(wanted(0), wanted(1))
        leader.append(0)
        await turns()
        found = told(waiting.result())
        assert (len(found), summary(found)) == (2, {0: (0, SIZE), 1: (0, 0)})


async def test_a_request_that_is_answered_leaves_the_next_one_waiting(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0))
        first = leader.wait()
        second = leader.wait()
        await turns()
        assert first.done()
        assert not second.done()
        leader.append()
        await turns()
        assert summary(told(second.result())) == {0: (0, SIZE)}


# Partitions that cannot be fetched


async def test_an_error_is_said_at_once_and_again_until_the_partition_is_forgotten(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        (data,) = leader.fetch(wanted(2), max_wait_ms=500)
        assert data == PartitionData(2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, records=b"")
        assert leader.fetch(max_wait_ms=500) == [data]
        assert leader.fetch(forgotten_topics_data=[ForgottenTopic("t", partitions=[2])]) == []
        assert summary(leader.fetch(wanted(0), wanted(2), wanted(1))) == {
            0: (0, 0),
            1: (0, 0),
            2: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        }


async def test_a_partition_that_goes_is_left_and_one_that_comes_back_fetched_again(tmp_path: Path) -> None:
    record = two_partitions()
    async with leading(tmp_path, record) as leader:
        leader.fetch(wanted(0))
        before = leader.partition()
        await leader.world.told(state())
        assert summary(leader.fetch()) == {0: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
        assert not before.followers
        await leader.world.told(state(record))
        leader.fetch(wanted(0))
        assert len(leader.partition().followers) == 1


async def test_a_partition_that_was_away_between_two_requests_is_followed_where_it_is_now(
    tmp_path: Path,
) -> None:
    record = two_partitions()
    async with leading(tmp_path, record) as leader:
        leader.fetch(wanted(0))
        before = leader.partition()
        await leader.world.told(state())
        await leader.world.told(state(record))
        assert leader.partition() is not before
        leader.fetch(wanted(0))
        assert (len(before.followers), len(leader.partition().followers)) == (0, 1)


async def test_a_follower_of_an_older_epoch_is_told_who_leads(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        (data,) = leader.fetch(wanted(0, current_leader_epoch=EPOCH - 1))
        assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert data.current_leader == LeaderIdAndEpoch(US, EPOCH)


async def test_a_follower_that_takes_us_for_the_leader_is_told_who_is(tmp_path: Path) -> None:
    async with leading(tmp_path, topic("t", led_by(THEM, epoch=5))) as leader:
        (data,) = leader.fetch(wanted(0))
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert data.current_leader == LeaderIdAndEpoch(THEM, 5)


async def test_other_errors_name_no_leader(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        (data,) = leader.fetch(wanted(0, current_leader_epoch=EPOCH + 1))
        assert (data.error_code, data.current_leader) == (ErrorCode.UNKNOWN_LEADER_EPOCH, None)
        metadata = leader.world.replicas.metadata
        assert current_leader(metadata, "t", 1) == LeaderIdAndEpoch(US, EPOCH)
        assert current_leader(metadata, "t", 2) is None
        assert current_leader(metadata, "unknown", 0) is None


@pytest.mark.parametrize("replicas", [(US,), (US, OTHERS)])
@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (0, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_who_has_no_replica_of_a_partition_does_not_follow_it(
    tmp_path: Path, replicas: tuple[int, ...], epoch: int, code: ErrorCode
) -> None:
    """A follower that knows the epoch is ahead of us, and knows of its own replica."""
    async with leading(tmp_path, two_partitions(*replicas, epoch=0)) as leader:
        assert summary(leader.fetch(wanted(0, current_leader_epoch=epoch))) == {0: (code, 0)}


# Offsets


async def test_offsets_that_the_log_does_not_have(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        for _ in range(3):
            leader.append()
        leader.partition().log.delete_records_before(1)
        for offset, expected in {
            0: (ErrorCode.OFFSET_OUT_OF_RANGE, 0),
            1: (0, 2 * SIZE),
            3: (0, 0),
            4: (ErrorCode.OFFSET_OUT_OF_RANGE, 0),
        }.items():
            assert summary(leader.fetch(wanted(0, offset))) == {0: expected}


async def test_a_follower_whose_log_parts_from_ours_is_told_where_at_once(tmp_path: Path) -> None:
    async with leading(tmp_path, two_partitions(epoch=1)) as leader:
        leader.append()
        leader.append()
        await leader.world.told(state(replace(two_partitions(epoch=4), topic_id=leader.partition().topic_id)))
        leader.append()
        given = wanted(0, 9, last_fetched_epoch=3, current_leader_epoch=4)
        (data,) = leader.fetch(given, max_wait_ms=500)
        assert data == PartitionData(0, 0, 0, -1, 0, diverging_epoch=EpochEndOffset(1, 2), records=b"")
        isr = leader.partition().isr
        assert isr is not None
        assert isr.followers[THEM].log_end == -1, "it is not known how far it is"


# Requests that are refused


async def test_a_session_is_continued_by_its_id_and_the_next_epoch(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0))
        session_id, epoch = leader.next
        assert (session_id > 0, epoch) == (True, 1)
        leader.fetch()
        for wrong in (1, 3):
            request = fetch(session=(session_id, wrong))
            assert refusal(leader, request) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert leader.fetch() == []


def test_after_the_last_epoch_of_a_session_comes_the_first() -> None:
    assert [next_session_epoch(epoch) for epoch in (0, 1, 0x7FFFFFFE, 0x7FFFFFFF)] == [1, 2, 0x7FFFFFFF, 1]


async def test_a_session_that_is_not_this_followers_is_not_found(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        request = fetch(session=(5, 1))
        assert refusal(leader, request) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "there is none"
        leader.fetch(wanted(0))
        session_id, _ = leader.next
        request = fetch(session=(session_id % 1000 + 1, 1))
        assert refusal(leader, request) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "another id"
        request = fetch(session=leader.next)
        not_found = refusal(leader, request, follower())
        assert not_found is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "another connection"
        assert leader.fetch() == []


@pytest.mark.parametrize("largest", [True, False])
async def test_the_id_of_a_session_is_a_positive_int32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: bool
) -> None:
    monkeypatch.setattr(fetch_sessions.secrets, "randbelow", lambda limit: limit - 1 if largest else 0)
    async with leading(tmp_path) as leader:
        leader.fetch()
        assert leader.next[0] == (0x7FFFFFFF if largest else 1)


async def test_a_new_session_ends_the_followers_last(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.fetch(wanted(0))
        waiting = leader.wait()
        leader.next = FULL
        leader.connection = follower()
        leader.fetch(wanted(0))
        await turns()
        assert waiting.done()
        assert len(leader.partition().followers) == 1


async def test_a_fetch_without_a_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        leader.append()
        answer = answered(leader.sessions, fetch(wanted(0), session=NO_SESSION), leader.connection, 12)
        assert isinstance(answer, FetchResponse)
        assert (answer.session_id, summary(told(answer))) == (0, {0: (0, SIZE)})
        assert not leader.partition().followers
        leader.fetch(wanted(0, 1))
        assert leader.fetch() == [], "the session is another one"
        request = fetch(wanted(1), session=NO_SESSION, min_bytes=2, max_wait_ms=500)
        waiting = answered(leader.sessions, request, leader.connection, 12)
        assert isinstance(waiting, asyncio.Future)
        assert leader.partition(1).followers
        leader.append(1)
        await turns()
        assert summary(told(waiting.result())) == {1: (0, SIZE)}
        assert not leader.partition(1).followers


@pytest.mark.parametrize("peer", [None, PeerBroker(OTHERS, 0)])
async def test_who_is_not_the_broker_that_it_claims_to_be_is_refused(
    tmp_path: Path, peer: PeerBroker | None
) -> None:
    async with leading(tmp_path) as leader:
        leader.append()
        leader.connection = consumer() if peer is None else broker(*peer)
        expected = PartitionData(1, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, records=b"")
        assert leader.fetch(wanted(1)) == [expected]
        assert leader.next[0] == 0
        assert not leader.partition(1).followers


async def test_an_earlier_incarnation_of_a_broker_is_refused(tmp_path: Path) -> None:
    record = two_partitions()
    brokers = {THEM: broker_record(THEM, epoch=5)}
    async with leading(tmp_path, record) as leader:
        await leader.world.told(replace(state(record), brokers=brokers))
        stale = refusal(leader, fetch(wanted(0)), follower(THEM, 4))
        assert stale is ErrorCode.STALE_BROKER_EPOCH, "it is registered under a later epoch"
        for epoch in (5, 6):
            answer = answered(leader.sessions, fetch(wanted(0)), follower(THEM, epoch), 12)
            assert summary(told(answer)) == {0: (0, 0)}  # type: ignore[arg-type]
        stale = refusal(leader, fetch(wanted(0)), follower(THEM, 5))
        assert stale is ErrorCode.STALE_BROKER_EPOCH, "its later incarnation has a session"
        await leader.world.told(replace(state(record), brokers={}))
        answer = answered(leader.sessions, fetch(wanted(0)), follower(THEM, 1), 12)
        assert summary(told(answer)) == {0: (0, 0)}, "none is known"  # type: ignore[arg-type]


@pytest.mark.parametrize(("registered", "stays"), [(None, False), (4, True), (5, True), (6, False)])
async def test_the_session_of_a_broker_that_is_gone_or_registered_again_ends(
    tmp_path: Path, registered: int | None, stays: bool
) -> None:
    record = two_partitions()
    async with leading(tmp_path, record) as leader:
        leader.connection = follower(THEM, 5)
        leader.fetch(wanted(0))
        brokers = {} if registered is None else {THEM: broker_record(THEM, registered)}
        leader.sessions.forget(brokers)
        assert bool(leader.partition().followers) is stays


# Senders


async def test_the_broker_with_the_lowest_id_is_a_follower_like_others(tmp_path: Path) -> None:
    record = two_partitions(US, 0)
    async with leading(tmp_path, record) as leader:
        await leader.world.told(state(record, alive=(0, US)))
        leader.append()
        forged = answered(leader.sessions, fetch(wanted(), replica=0), consumer(), 12)
        assert isinstance(forged, FetchResponse)
        assert summary(told(forged)) == {0: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)}
        answer = answered(leader.sessions, fetch(wanted(), replica=0), follower(0), 12)
        assert isinstance(answer, FetchResponse)
        assert summary(told(answer)) == {0: (0, SIZE)}, "above the high watermark"


@pytest.mark.parametrize("isolation", [0, 1])
async def test_aborted_transactions_are_none_where_nobody_asked_for_them(
    tmp_path: Path, isolation: int
) -> None:
    """As in Kafka, except for partitions that it does not know."""
    elsewhere = topic("t", led_by(THEM, epoch=EPOCH))
    async with leading(tmp_path, elsewhere) as leader:
        asked = fetch(
            wanted(0, current_leader_epoch=-1),
            wanted(7, current_leader_epoch=-1),
            replica=-1,
            session=NO_SESSION,
            isolation_level=isolation,
        )
        answer = answered(leader.sessions, asked, consumer(), 10)
        assert isinstance(answer, FetchResponse)
        led, unknown = told(answer)
        assert (led.error_code, led.aborted_transactions) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            [] if isolation else None,
        )
        assert (unknown.error_code, unknown.aborted_transactions) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            [],
        )


async def test_a_topic_made_anew_is_another_one_to_a_session(tmp_path: Path) -> None:
    """Equal offsets are news, and the follower's requests alone set its position."""
    async with leading(tmp_path) as leader:
        leader.append()
        leader.fetch(wanted(0, 1))
        assert leader.fetch() == []
        await leader.world.told(state(two_partitions()))
        leader.append()
        (data,) = leader.fetch()
        assert (data.error_code, data.high_watermark, data.log_start_offset) == (0, 1, 0)
        isr = leader.partition().isr
        assert isr is not None
        assert isr.followers[THEM].log_end == 1


async def test_another_principal_neither_continues_nor_ends_a_session(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader:
        theirs = consumer()
        mine = theirs._replace(session=theirs.session._replace(principal="User:mallory"))
        begun = answered(leader.sessions, fetch(wanted(0), wanted(1), replica=-1), theirs, 12)
        assert isinstance(begun, FetchResponse)
        session = begun.session_id, 1
        for request in (fetch(session=session, replica=-1), fetch(session=(session[0], 5), replica=-1)):
            assert refusal(leader, request, mine) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        answered(leader.sessions, fetch(wanted(0), session=(session[0], 0), replica=-1), mine, 12)
        continued = answered(leader.sessions, fetch(session=session, replica=-1), theirs, 12)
        assert isinstance(continued, FetchResponse)
        assert continued.session_id == session[0]
