"""The controller's driver: writes, responses, and the end of a controllership."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.controller import driver as driving
from millstream_broker.controller.driver import ControllerDriver, settings_of
from millstream_broker.controller.messages import (
    Abandoned,
    AcceptBroker,
    AnswerCaller,
    BrokerAccepted,
    ElectionRequested,
    ElectionType,
    RefuseDeletion,
    RemoveTopic,
    Settings,
    SettingsChanged,
    StatesWritten,
    Tick,
    TopicRemoved,
    WriteStates,
)
from millstream_broker.coordination import BrokerRecord, CoordinationError
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    ConfigsChanged,
    DeletionsRequested,
    Fenced,
)
from millstream_broker.runtime.steps import Steps
from millstream_harness.controller import topic
from millstream_harness.controller_surroundings import MemoryStore, Peers
from millstream_harness.virtual_time import now, turns, virtual_time
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.stop_replica import StopReplicaRequest

PREFERRED = ElectionType.PREFERRED


class Office:
    """A driver and its surroundings; `events` are those passed to its machine."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.peers = Peers()
        self.driver = ControllerDriver(self.peers.broker_id, self.peers.connect, BrokerConfig(), store)
        self.events: list[Any] = []
        self._handle = self.driver.machine.handle
        self.driver.machine.handle = self._keep

    def _keep(self, event: Any) -> Any:
        self.events.append(event)
        return self._handle(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.events if isinstance(one, kind)]

    def live(self, *brokers: int) -> None:
        self.store.report(BrokersChanged({one: BrokerRecord(one, (), None, 1) for one in brokers}))

    def fail(self, event: Any) -> Any:
        """Replaces the machine's `handle`: a bug."""
        raise ZeroDivisionError("a bug")


def steps(out: list[Any]) -> Steps[list[Any]]:
    """The steps of a machine that answers an event with ``out``."""
    yield
    return out


@asynccontextmanager
async def office(store: MemoryStore | None = None) -> AsyncIterator[Office]:
    """A new controller; broker 1 leads partition t-0, broker 2 is in sync."""
    entered = Office(store or MemoryStore((1, 2, 3), topic("t", (1, 2))))
    entered.driver.start()
    await turns()
    yield entered
    await entered.driver.stop()


async def refused(request: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        await request
    return error.value


# Ordinary events


@virtual_time
async def test_what_the_machine_decides_is_written_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, driving.__name__)
    async with office() as it:
        assert [one.getMessage() for one in caplog.records] == ["this broker is the controller now, epoch 5"]
        assert {one.broker for one in it.peers.asked} == {1, 2, 3}
        it.live(2, 3)
        await turns()
        (states,) = it.store.called("write_states")
        assert states["t", 0].leader == 2
        assert it.driver.machine.records["t", 0].leader == 2
        (told,) = it.peers.of(3)[-1].topic_states
        assert told.partition_states[0].leader == 2
        assert it.peers.open() == [2, 3], "nobody is connected to who is gone"
        assert await it.driver.list_reassignments(None, 1.0) == {}


@virtual_time
async def test_it_is_settled_when_what_it_decided_first_is_written_and_told() -> None:
    store = MemoryStore((2, 3), topic("t", (1, 2)))
    store.takes_s = 2.0
    async with office(store) as it:
        await it.driver.settled(0.5)
        assert not store.called("write_states"), "the time was over"
        await it.driver.settled(100)
        assert it.driver.machine.records["t", 0].leader == 2
        (told,) = it.peers.of(3)[-1].topic_states
        assert told.partition_states[0].leader == 2
        assert now() < 10


@virtual_time
async def test_a_topic_is_deleted_and_a_request_refused() -> None:
    async with office() as it:
        it.store.report(DeletionsRequested(frozenset({"t", "unknown"})))
        await asyncio.sleep(0.5)
        assert it.store.called("refuse_deletion") == [{"unknown"}]
        assert it.store.called("remove_topic") == ["t"]
        assert not it.driver.machine.topics
        assert any(isinstance(one, StopReplicaRequest) for one in it.peers.of(1))


@virtual_time
async def test_a_broker_is_accepted_and_suspects_are_asked_for_their_logs() -> None:
    async with office() as it:
        it.live()
        for broker in (2, 1):
            unclean = {
                one: BrokerRecord(one, (), None, 2, True) for one in (2, 1)[: (2, 1).index(broker) + 1]
            }
            it.store.report(BrokersChanged(unclean))
            await asyncio.sleep(0.5)
        assert [one.broker_id for one in it.store.called("accept_broker")] == [2, 1]
        assert len(it.of(BrokerAccepted)) == 2
        assert it.driver.machine.records["t", 0].leader in (1, 2)


@virtual_time
async def test_what_is_reported_during_the_load_comes_after_it() -> None:
    store = MemoryStore((1, 2, 3), topic("t", (1, 2)))
    store.early = [BrokersChanged({2: BrokerRecord(2, (), None, 1)})]
    async with office(store) as it:
        assert set(it.driver.machine.brokers) == {2}
        assert it.driver.machine.records["t", 0].leader == 2


@virtual_time
async def test_time_passes_once_all_is_loaded() -> None:
    store = MemoryStore((1, 2))
    store.takes_s = 2.5
    async with office(store) as it:
        await asyncio.sleep(5.1)
        assert it.of(Tick) == [Tick(pytest.approx(3.0)), Tick(pytest.approx(4.0)), Tick(pytest.approx(5.0))]


@virtual_time
async def test_the_clusters_configuration_changes_the_settings() -> None:
    async with office() as it:
        it.store.report(ConfigsChanged({}, {None: {"min.insync.replicas": "2"}, 1: {}}))
        assert it.of(SettingsChanged) == [SettingsChanged(Settings(min_isr=2))]
        it.store.report(ConfigsChanged({}, {}))
        assert it.driver.machine.settings == Settings()


def test_settings() -> None:
    assert settings_of(BrokerConfig()) == Settings()
    configured = BrokerConfig(
        {
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "true",
            "auto.leader.rebalance.enable": "false",
            "leader.imbalance.check.interval.seconds": "7",
            "leader.imbalance.per.broker.percentage": "8",
        }
    )
    assert settings_of(configured) == Settings(2, True, False, 7, 8)
    assert settings_of(configured, {"min.insync.replicas": "3"}) == Settings(3, True, False, 7, 8)


# Writes


@virtual_time
async def test_a_write_is_repeated_until_the_store_answers(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore((1, 2, 3), topic("t", (1, 2)))
    store.problems.extend([CoordinationError("no connection")] * 7)
    async with office(store) as it:
        await asyncio.sleep(5.0)
        assert it.store.times == [0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55]
        assert it.store.called("load") == [None] * 8
        assert {one.getMessage() for one in caplog.records} == {"the controller retries: no connection"}
        assert set(it.driver.machine.topics) == {"t"}


@virtual_time
async def test_writes_are_made_one_after_the_other_and_removals_of_topics_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driving, "REMOVALS_AT_ONCE", 2)
    async with office() as it:
        record = it.driver.machine.records["t", 0]
        decided = [
            WriteStates({("t", 0): record}),
            RemoveTopic("a"),
            RefuseDeletion(frozenset({"b"})),
            WriteStates({("t", 1): record}),
            *(RemoveTopic(name) for name in "cdefg"),
            AcceptBroker(BrokerRecord(1, ())),
            RemoveTopic("h"),
            RemoveTopic("i"),
        ]
        monkeypatch.setattr(
            it.driver.machine, "handle", lambda event: steps([decided.pop(0) for _ in list(decided)])
        )
        it.store.calls.clear()
        it.store.times.clear()
        it.store.takes_s = 1.0
        begun = now()
        it.live(1, 2, 3)
        await asyncio.sleep(20.0)
        assert [
            (name, round(at - begun)) for (name, _), at in zip(it.store.calls, it.store.times, strict=True)
        ] == [
            ("write_states", 0),
            ("remove_topic", 1),
            ("refuse_deletion", 2),
            ("write_states", 3),
            ("remove_topic", 4),
            ("remove_topic", 4),
            ("remove_topic", 5),
            ("remove_topic", 5),
            ("remove_topic", 6),
            ("accept_broker", 7),
            ("remove_topic", 8),
            ("remove_topic", 8),
        ]
        assert it.store.called("remove_topic") == list("acdefghi")


@virtual_time
async def test_the_machine_is_told_of_each_write() -> None:
    async with office() as it:
        record = it.driver.machine.records["t", 0]
        accepted = BrokerRecord(1, ())
        outs = [
            [
                WriteStates({("t", 0): record}),
                RemoveTopic("t"),
                AcceptBroker(accepted),
                RefuseDeletion(frozenset()),
            ]
        ]
        it._handle = lambda event: steps(outs.pop() if outs else [])
        it.live(1)
        it.events.clear()
        await turns()
        states, removed, done = it.events
        assert isinstance(states, StatesWritten)
        assert list(states.requested) == list(states.stored) == [("t", 0)]
        assert (removed, done) == (TopicRemoved("t"), BrokerAccepted(accepted))


# Requests


@virtual_time
async def test_administrators_are_answered() -> None:
    async with office() as it:
        it.live(2, 3)
        elected = await it.driver.elect_leaders(PREFERRED, [("t", 0)], 5.0)
        assert elected["t", 0].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert await it.driver.alter_reassignments({("t", 0): (2, 3)}, 5.0, may_change_factor=True) == {
            ("t", 0): None
        }
        assert set(await it.driver.list_reassignments([("t", 0)], 5.0)) == {("t", 0)}
        assert await it.driver.list_reassignments([], 5.0) == {}
        gone = await refused(it.driver.controlled_shutdown(1, 1))
        assert gone.code is ErrorCode.BROKER_NOT_AVAILABLE
        assert not it.of(Abandoned)


@virtual_time
async def test_a_shutdown_is_answered_when_brokers_have_been_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, driving.__name__)
    async with office() as it:
        it.peers.silent = {3}
        asked = asyncio.ensure_future(it.driver.controlled_shutdown(1, 1))
        await asyncio.sleep(1.9)
        assert "broker 1 requests a controlled shutdown" in caplog.text
        assert not asked.done()
        assert it.driver.machine.records["t", 0].leader == 2
        it.peers.wake()
        assert await asked == []
        assert now() == 1.9


@virtual_time
async def test_a_shutdown_does_not_wait_long_for_a_broker_that_does_not_answer() -> None:
    async with office() as it:
        it.peers.silent = {3}
        assert await it.driver.controlled_shutdown(1, 1) == []
        assert now() == 2.0


@virtual_time
async def test_a_request_waits_for_the_load_and_not_for_ever() -> None:
    store = MemoryStore((1, 2, 3), topic("t", (1, 2)))
    store.takes_s = 3.0
    async with office(store) as it:
        early = await refused(it.driver.list_reassignments(None, 2.0))
        assert (early.code, early.message) == (
            ErrorCode.REQUEST_TIMED_OUT,
            "The controller was not done within 2 s.",
        )
        late = await refused(it.driver.alter_reassignments({("t", 0): (2, 3)}, 2.5, may_change_factor=True))
        assert late.code is ErrorCode.REQUEST_TIMED_OUT
        assert now() == 4.5, "both are limited together"
        assert len(it.of(Abandoned)) == 1
        assert await it.driver.alter_reassignments({("t", 0): (3, 2)}, 20.0, may_change_factor=True) == {
            ("t", 0): None
        }
        assert len(it.of(Abandoned)) == 1


@virtual_time
async def test_a_shutdown_waits_for_half_a_minute_unless_it_is_told_otherwise() -> None:
    async with office() as it:
        it.store.takes_s = 100.0
        late = await refused(it.driver.controlled_shutdown(1, 1))
        assert (late.code, now()) == (ErrorCode.REQUEST_TIMED_OUT, 30.0)


@virtual_time
async def test_a_caller_that_gives_up_in_the_turn_of_its_answer_harms_nobody() -> None:
    async with office() as it:
        it.store.takes_s = 1.0
        asked = asyncio.ensure_future(
            it.driver.alter_reassignments({("t", 0): (2, 3)}, 20.0, may_change_factor=True)
        )
        other = asyncio.ensure_future(
            it.driver.alter_reassignments({("t", 0): (3, 2)}, 20.0, may_change_factor=True)
        )
        await turns()
        asked.cancel()
        it.driver._handle(DeletionsRequested(frozenset({"t"})))
        await asyncio.sleep(5.0)
        assert asked.cancelled()
        assert (await other)["t", 0] is None
        assert not it.store.called("resign")


# Long events


class LongEvents:
    """Replaces the machine: events do not end before `may_end` is set."""

    def __init__(self, it: Office) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.may_end = False
        self.out: list[Any] = []
        it._handle = self._handle

    def _handle(self, event: Any) -> Steps[list[Any]]:
        self.begun.append(event)
        while not self.may_end:
            yield
        self.ended.append(event)
        out, self.out = self.out, []
        return out


@virtual_time
async def test_an_event_ends_before_the_next_begins_and_before_anybody_looks() -> None:
    async with office() as it:
        long = LongEvents(it)
        it.live(1)
        it.live(2)
        asked = asyncio.ensure_future(it.driver.list_reassignments(None, 5.0))
        settled = asyncio.ensure_future(it.driver.settled(5.0))
        await turns(5)
        assert [set(one.brokers) for one in long.begun] == [{1}], "the loop has its turns in between"
        assert not asked.done()
        assert not settled.done()
        long.may_end = True
        assert await asked == {}
        await settled
        assert [set(one.brokers) for one in long.ended] == [{1}, {2}]
        assert now() == 0.0


@virtual_time
async def test_an_answer_that_comes_after_the_caller_has_gone_harms_nobody() -> None:
    async with office() as it:
        long = LongEvents(it)
        asked = asyncio.ensure_future(it.driver.elect_leaders(PREFERRED, None, 1.0))
        await turns(3)
        (event,) = long.begun
        asked.cancel()
        await turns(3)
        long.out = [AnswerCaller(event.caller, {})]
        long.may_end = True
        await turns()
        assert [type(one) for one in long.ended] == [ElectionRequested, Abandoned]
        assert not it.store.called("resign")


@virtual_time
async def test_nothing_comes_of_an_event_once_the_office_is_lost() -> None:
    async with office() as it:
        long = LongEvents(it)
        it.live(1)
        asked = asyncio.ensure_future(it.driver.list_reassignments(None, 5.0))
        await turns(3)
        it.driver._lose()
        assert (await refused(asked)).code is ErrorCode.NOT_CONTROLLER
        long.may_end = True
        await turns()
        assert not long.ended


# The end


@virtual_time
async def test_a_newer_controller_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, driving.__name__)
    async with office() as it:
        it.store.takes_s = 1.0
        asked = [
            asyncio.ensure_future(
                it.driver.alter_reassignments({("t", 0): target}, 20.0, may_change_factor=True)
            )
            for target in ((2, 3), (3, 2))
        ]
        await turns()
        it.store.problems.append(Fenced())
        for one in asked:
            assert (await refused(one)).code is ErrorCode.NOT_CONTROLLER
        assert (await refused(it.driver.list_reassignments(None, 1.0))).code is ErrorCode.NOT_CONTROLLER
        it.events.clear()
        calls, told = len(it.store.calls), len(it.peers.asked)
        it.live(2)
        await asyncio.sleep(5.0)
        assert (len(it.store.calls), len(it.peers.asked)) == (calls, told)
        assert not it.events
        assert not it.store.called("resign")
        it.driver._lose()
        ends = [
            one for one in caplog.records if "is no longer the controller: epoch 5 has ended" in one.msg % 5
        ]
        assert len(ends) == 1


@virtual_time
async def test_who_waits_for_the_load_is_told_that_it_is_over() -> None:
    store = MemoryStore((1, 2, 3))
    store.takes_s = 1.0
    store.problems.append(Fenced())
    async with office(store) as it:
        asked = asyncio.ensure_future(it.driver.list_reassignments(None, 20.0))
        assert (await refused(asked)).code is ErrorCode.NOT_CONTROLLER
        assert now() == 1.0


@virtual_time
async def test_a_bug_in_the_machine_has_the_broker_resign(caplog: pytest.LogCaptureFixture) -> None:
    async with office() as it:
        it._handle = it.fail
        failed = await refused(it.driver.elect_leaders(PREFERRED, None, 20.0))
        assert failed.code is ErrorCode.NOT_CONTROLLER
        assert "controller failed: this broker resigns" in caplog.text
        assert "ZeroDivisionError: a bug" in caplog.text
        await asyncio.sleep(0.9)
        assert not it.store.called("resign"), "brokers do not take turns at once"
        await asyncio.sleep(0.2)
        assert len(it.store.called("resign")) == 1
        await asyncio.sleep(5.0)
        assert not it.of(Tick), "time no longer passes for it"


@virtual_time
async def test_a_caller_that_is_refused_in_the_step_of_its_request_leaves_no_unread_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio would log an error that nobody has read."""
    loop, made = asyncio.get_running_loop(), []

    def create_future(create: Any = loop.create_future) -> asyncio.Future[Any]:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(loop, "create_future", create_future)
    async with office() as it:
        it._handle = it.fail
        assert (
            await refused(it.driver.elect_leaders(PREFERRED, None, 20.0))
        ).code is ErrorCode.NOT_CONTROLLER
    assert made
    assert not any(one._log_traceback for one in made)


@virtual_time
async def test_a_bug_that_the_first_report_shows_is_found_before_anybody_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore((1, 2, 3), topic("t", (1, 2)))
    store.early = [BrokersChanged({2: BrokerRecord(2, (), None, 1)})]
    store.takes_s = 1.0
    async with office(store) as it:
        it._handle = it.fail
        assert (await refused(it.driver.list_reassignments(None, 20.0))).code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(3.0)
        assert len(it.store.called("resign")) == 1
        assert caplog.text.count("this broker resigns") == 1


@virtual_time
async def test_a_bug_that_time_shows_and_an_office_that_is_lost_already() -> None:
    async with office() as it:
        it._handle = it.fail
        it.store.problems.append(Fenced())
        await asyncio.sleep(5.0)
        assert len(it.store.called("resign")) == 1
        assert len(it.events) == 1
