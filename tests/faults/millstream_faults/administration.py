"""What administrators do to a cluster: each operation is retried and recorded in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.kafka_uuid import uuid_from, uuid_text
from millstream_kafka.protocol import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .history import (
    NEVER,
    Committed,
    CommitUnknown,
    ConfigAltered,
    Event,
    GroupDeleted,
    HistoryWriter,
    RecordsDeleted,
    TopicCreated,
    TopicDeleted,
    TopicLost,
)
from .positions import SIMPLE
from .probe import EARLIEST, LATEST, Known, Probe
from .topics import PLANS

T = TypeVar("T")
PATIENCE_S = 240.0
"""Limit for what an administrator repeats: ZooKeeper may be away, and the machine busy. No promise."""
PAUSE_S = 0.1
REQUEST_MS = 5000
WHO = "administrator"
_TOPIC_RESOURCE = 2
_SET = 0


class Administration:
    """Thread-safe. ``topics`` holds the topics that exist; a topic that is being recreated is not in it."""

    def __init__(self, bootstrap: str, history: HistoryWriter) -> None:
        self.bootstrap = bootstrap
        self.topics: dict[str, Known] = {}
        self.history = history
        self.on_settled: Callable[[], None] = lambda: None
        """Called when topics are as they should be after a tree was restored."""
        self._created_at = 0.0
        self._late: dict[str, list[ConfigAltered]] = {}
        """Requests without an immediate answer; they may take effect on the recreated topic."""

    def create(self, name: str) -> None:
        """Create a topic by its plan. Raises RuntimeError if creation never succeeds."""
        self._create(name, former="")

    def make_anew(self, name: str, pause_s: float) -> str:
        """Delete a topic and create it again; return a text with both ids."""
        former = self.topics.pop(name)
        asked, freed = time.monotonic(), float("inf")
        try:
            self._until(f"delete {name}", lambda: self._delete(former))
            time.sleep(pause_s)
            self._create(name, former.id)
            freed = self._created_at
        finally:
            self._note(TopicDeleted(freed, WHO, former.id, asked))
        return f"{name} {former.id}, now {self.topics[name].id}"

    def delete_records(self, name: str, partition: int, part: float, group: str | None = None) -> str:
        """Delete this fraction of a partition's records, but none that the group has not read."""
        known = self.topics[name]

        async def find(probe: Probe) -> int:
            start = await probe.offset(name, partition, EARLIEST)
            wanted = start + int(part * (await probe.offset(name, partition, LATEST) - start))
            return wanted if group is None else min(wanted, await probe.committed(group, name, partition))

        asked, answered, offset = time.monotonic(), NEVER, 0
        try:
            offset = max(self._ask(find), 0)
            asked = time.monotonic()
            code = self._ask(lambda probe: _delete_records(probe, name, partition, offset))
            if code == 0:
                answered = time.monotonic()
            told = ErrorCode.of(code).name
        except (BrokerError, ApiError) as error:
            told = str(error)
        self._note(RecordsDeleted(answered, WHO, known.id, partition, offset, asked))
        return f"{name}-{partition} before {offset} ({told})"

    def add_partition(self, name: str) -> str:
        known = self.topics[name]
        count = known.partitions + 1
        request = create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(name, count, None)], REQUEST_MS, False
        )

        async def ask(probe: Probe) -> bool:
            answer = await probe.client.call_any(create_partitions.API, request)
            now = await probe.topic(name)
            return now is not None and now.partitions >= count and answer.results[0].error_code >= 0

        self._until(f"give {name} {count} partitions", lambda: self._ask(ask))
        self.topics[name] = known._replace(partitions=count)
        return f"{name} has {count}"

    def alter(self, name: str, values: Mapping[str, str]) -> None:
        """Set a topic's configuration."""
        known = self.topics[name]
        configs = [
            incremental_alter_configs.AlterableConfig(key, _SET, value) for key, value in values.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(_TOPIC_RESOURCE, name, configs)
        request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], False)

        async def ask(probe: Probe) -> bool:
            answer = await probe.client.call_any(incremental_alter_configs.API, request)
            return answer.responses[0].error_code == 0

        asked = time.monotonic()
        events = [ConfigAltered(asked, WHO, known.id, key, value, asked) for key, value in values.items()]
        self._note(*events)
        if self._until(f"set {values} of {name}", lambda: self._ask(ask)) > 1:
            self._late[name] = events

    def find_coordinator(self) -> None:
        """Wait until groups have positions: the first request for a coordinator creates their topic."""
        name = next(iter(self.topics))
        self._until(
            "find a coordinator", lambda: self._ask(lambda probe: probe.committed(SIMPLE, name, 0)) < 0
        )

    def find_transaction_coordinator(self) -> None:
        """Wait until transactions have a coordinator: the first request for one creates their topic."""
        request = find_coordinator.FindCoordinatorRequest("anybody", key_type=1, coordinator_keys=["anybody"])

        async def ask(probe: Probe) -> bool:
            answer = await probe.client.call_any(find_coordinator.API, request)
            return not any(one.error_code for one in answer.coordinators) and not answer.error_code

        self._until("find a coordinator of transactions", lambda: self._ask(ask))

    def delete_group(self) -> str:
        """Delete the group whose positions the checker tracks."""
        asked = time.monotonic()
        request = delete_groups.DeleteGroupsRequest([SIMPLE])

        async def ask(probe: Probe) -> int:
            answer = await probe.client.call_coordinator(SIMPLE, delete_groups.API, request)
            return answer.results[0].error_code

        try:
            code = ErrorCode.of(self._ask(ask))
        except (BrokerError, ApiError) as error:
            self._note(GroupDeleted(NEVER, WHO, asked))
            return str(error)
        if code is ErrorCode.NONE:
            self._note(GroupDeleted(time.monotonic(), WHO, asked))
        elif code is not ErrorCode.GROUP_ID_NOT_FOUND:
            self._note(GroupDeleted(NEVER, WHO, asked))
        return code.name

    def reset_group(self, name: str, part: float) -> str:
        """Reset the group's position to this fraction of each partition."""
        known, told = self.topics[name], []
        for partition in range(known.partitions):
            asked, offset = time.monotonic(), -1
            try:
                end = self._ask(lambda probe, at=partition: probe.offset(name, at, LATEST))  # type: ignore[misc]
                asked, offset = time.monotonic(), int(part * end)
                self._ask(lambda probe, at=partition, to=offset: probe.commit(SIMPLE, name, at, to))  # type: ignore[misc]
            except (BrokerError, ApiError) as error:
                told.append(str(error))
                if offset >= 0:
                    self._note(CommitUnknown(asked, f"{SIMPLE}-reset", partition, offset, known.id))
            else:
                now = time.monotonic()
                self._note(Committed(now, f"{SIMPLE}-reset", partition, offset, known.id, asked))
                told.append(str(offset))
        return ", ".join(told)

    def reassign(self, name: str, targets: Mapping[int, list[int]]) -> str:
        """Request other replicas for partitions; return the outcome."""
        partitions = [
            alter_partition_reassignments.ReassignablePartition(partition, replicas)
            for partition, replicas in targets.items()
        ]
        topic = alter_partition_reassignments.ReassignableTopic(name, partitions)
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(REQUEST_MS, topics=[topic])

        async def ask(probe: Probe) -> set[int]:
            answer = await probe.client.call_any(alter_partition_reassignments.API, request)
            return {answer.error_code} | {
                one.error_code for topic in answer.responses for one in topic.partitions
            }

        return self._told(ask)

    def settle(self, since: float) -> None:
        """After a tree was restored at this time: create what it does not know, and give each partition its replicas.

        A topic that was made anew after the copy has its former id again, and is deleted once more.
        """
        for name in PLANS:
            self._until(f"find {name}", lambda name=name: self._find_again(name, since))  # type: ignore[misc]
            self._until(f"place {name}", lambda name=name: self._place(name))  # type: ignore[misc]
        self.on_settled()

    def _find_again(self, name: str, since: float) -> bool:
        found = self._ask(lambda probe: probe.described(name))
        known = self.topics[name]
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            stored = ""
        elif found.error_code:
            return False
        else:
            stored = uuid_text(found.topic_id)
        if stored == known.id:
            return True
        del self.topics[name]
        try:
            if stored:
                former = Known(stored, len(found.partitions))
                self._until(f"delete {name} again", lambda: self._delete(former))
            self._create(name, stored)
        finally:
            self._note(TopicLost(self._created_at, WHO, known.id, since))
        return True

    def _place(self, name: str) -> bool:
        found = self._ask(lambda probe: probe.described(name))
        count = PLANS[name].replicas
        brokers = sorted({broker for one in found.partitions for broker in one.replica_nodes})
        wrong = {
            one.partition_index: [*one.replica_nodes, *(set(brokers) - set(one.replica_nodes))][:count]
            for one in found.partitions
            if len(one.replica_nodes) != count
        }
        if any(len(replicas) < count for replicas in wrong.values()) or found.error_code:
            return False
        return not wrong or self.reassign(name, wrong) == "NONE"

    def elect_preferred(self, name: str, count: int) -> str:
        """Request the preferred leaders of this many partitions; return the outcome."""
        wanted = elect_leaders.TopicPartitions(name, list(range(count)))
        request = elect_leaders.ElectLeadersRequest(0, [wanted], REQUEST_MS)

        async def ask(probe: Probe) -> set[int]:
            answer = await probe.client.call_any(elect_leaders.API, request)
            return {answer.error_code} | {
                one.error_code for topic in answer.replica_election_results for one in topic.partition_result
            }

        return self._told(ask)

    def _told(self, ask: Callable[[Probe], Awaitable[set[int]]]) -> str:
        try:
            return ", ".join(sorted(ErrorCode.of(code).name for code in self._ask(ask)))
        except (BrokerError, ApiError) as error:
            return str(error)

    def _create(self, name: str, former: str) -> None:
        asked = time.monotonic()
        plan = PLANS[name]
        configs = [create_topics.CreatableTopicConfig(key, value) for key, value in plan.config.items()]
        wanted = create_topics.CreatableTopic(name, plan.partitions, plan.replicas, configs=configs)
        request = create_topics.CreateTopicsRequest([wanted], REQUEST_MS, False)

        async def ask(probe: Probe) -> Known | None:
            await probe.client.call_any(create_topics.API, request)
            found = await probe.topic(name)
            return found if found is not None and found.id != former else None

        def attempt() -> bool:
            found = self._ask(ask)
            if found is None:
                return False
            self._created_at = time.monotonic()
            self._note(TopicCreated(self._created_at, WHO, found.id, name, asked, plan.is_compacted))
            self.topics[name] = found
            self._note(*(event._replace(topic=found.id) for event in self._late.pop(name, ())))
            return True

        self._until(f"create {name}", attempt)

    def _delete(self, former: Known) -> bool:
        """Delete by id: a late request must not delete a later topic of the name."""
        request = delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(None, uuid_from(former.id))], timeout_ms=REQUEST_MS
        )

        async def ask(probe: Probe) -> bool:
            answer = await probe.client.call_any(delete_topics.API, request)
            code = ErrorCode.of(answer.responses[0].error_code)
            return code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)

        return self._ask(ask)

    def _note(self, *events: Event) -> None:
        for event in events:
            self.history.add(event)

    def _ask(self, question: Callable[[Probe], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with Probe(self.bootstrap, WHO) as probe:
                return await question(probe)

        return asyncio.run(ask())

    def _until(self, what: str, attempt: Callable[[], bool]) -> int:
        """Return the number of attempts. Raises RuntimeError if none succeeds."""
        attempts = 0
        deadline = time.monotonic() + PATIENCE_S
        told = "never answered as wanted"
        while time.monotonic() < deadline:
            attempts += 1
            try:
                if attempt():
                    return attempts
            except (BrokerError, ApiError) as error:
                told = str(error)
            time.sleep(PAUSE_S)
        raise RuntimeError(f"could not {what} in {PATIENCE_S:g} s: {told}")


async def _delete_records(probe: Probe, name: str, partition: int, offset: int) -> int:
    wanted = [delete_records.DeleteRecordsPartition(partition, offset)]
    topics = [delete_records.DeleteRecordsTopic(name, wanted)]
    request = delete_records.DeleteRecordsRequest(topics, REQUEST_MS)
    answer = await probe.client.call_leader(name, partition, delete_records.API, request)
    return answer.topics[0].partitions[0].error_code
