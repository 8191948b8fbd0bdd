"""Metadata: topics are encoded once for each state, in slices, shared by clients, and always match the state."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.config.config import Listener
from millstream_broker.coordination import BrokerRecord, ClusterState, PartitionRecord, TopicRecord
from millstream_broker.metadata import encoded_topics
from millstream_broker.metadata.cache import Metadata
from millstream_broker.metadata.encoded_topics import AT_ONCE, MAX_FORMS, EncodedTopics
from millstream_broker.runtime import slices as slices_module
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique
from millstream_harness.wire import Wire
from millstream_kafka.protocol import create_topics, metadata
from millstream_kafka.protocol.codec import Codec
from millstream_kafka.protocol.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.metadata import (
    TOPIC,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream_kafka.protocol.schema import Encoded

pytestmark = pytest.mark.process

FORM = (12, None)


def broker(number: int) -> BrokerRecord:
    return BrokerRecord(number, (Listener("PLAINTEXT", "localhost", 9000 + number),))


def topic(name: str, partitions: int = 1, leader: int = 1, epoch: int = 0) -> TopicRecord:
    return TopicRecord(name, uuid.uuid4(), (PartitionRecord((1, 2), leader, epoch, (1, 2)),) * partitions)


def state(*topics: TopicRecord, alive: Sequence[int] = (1, 2)) -> Metadata:
    brokers = {number: broker(number) for number in alive}
    return Metadata(ClusterState("cluster", brokers, {one.name: one for one in topics}, 1))


class Subject:
    """Broker 1's topics, whose state tests replace; `encoded` lists names in the order of encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, metadata: Metadata) -> None:
        self.metadata = metadata
        self.offline: frozenset[tuple[str, int]] = frozenset()
        self.topics = EncodedTopics(1, lambda: self.metadata, lambda: self.offline)
        self.encoded: list[str] = []
        self.begun = asyncio.Event()
        """Set when a topic is encoded."""
        encode = TOPIC.encode

        def counted(version: int, described: MetadataResponseTopic) -> bytes:
            self.encoded.append(str(described.name))
            self.begun.set()
            return encode(version, described)

        stand_in = type("Counted", (), {"encode": staticmethod(counted)})
        monkeypatch.setattr("millstream_broker.metadata.encoded_topics.TOPIC", stand_in)

    def ask(
        self, form: encoded_topics.Form = FORM, asked: Sequence[encoded_topics.Requested] | None = None
    ) -> list[MetadataResponseTopic]:
        encoded = self.topics.encoded(form, asked)
        assert isinstance(encoded, Encoded)
        return decoded(encoded, form[0])


def decoded(encoded: Encoded, version: int = 12) -> list[MetadataResponseTopic]:
    answer = MetadataResponse(topics=encoded)  # type: ignore[arg-type]
    return metadata.API.decode_response(version, metadata.API.encode_response(version, answer)).topics


def test_each_topic_is_encoded_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = topic("a"), topic("b", 2), topic("__consumer_offsets")
    subject = Subject(monkeypatch, state(a, b, c))
    answer = subject.ask()
    assert [(one.name, one.topic_id, len(one.partitions), one.is_internal) for one in answer] == [
        ("a", a.topic_id, 1, False),
        ("b", b.topic_id, 2, False),
        ("__consumer_offsets", c.topic_id, 1, True),
    ]
    assert subject.topics.encoded(FORM, None) is subject.topics.encoded(FORM, None)
    subject.ask(asked=[b, a])
    assert subject.encoded == ["a", "b", "__consumer_offsets"]
    changed = replace(b, partitions=(replace(b.partitions[0], leader=2, leader_epoch=5), b.partitions[1]))
    subject.metadata = state(a, changed, topic("d"))
    answer = subject.ask()
    assert [one.name for one in answer] == ["a", "b", "d"]
    assert [(one.leader_id, one.leader_epoch) for one in answer[1].partitions] == [(2, 5), (1, 0)]
    assert subject.encoded[3:] == ["b", "d"]


def test_what_lives_and_what_is_offline_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = topic("t", 2)
    subject = Subject(monkeypatch, state(one))
    subject.ask()
    subject.metadata = state(one, alive=(2,))
    (answer,) = subject.ask()
    assert [
        (each.error_code, each.leader_id, each.isr_nodes, each.offline_replicas) for each in answer.partitions
    ] == [(ErrorCode.LEADER_NOT_AVAILABLE, -1, [2], [1])] * 2
    subject.metadata = state(one)
    subject.offline = frozenset({("t", 1)})
    (answer,) = subject.ask()
    assert [(each.leader_id, each.offline_replicas) for each in answer.partitions] == [(1, []), (-1, [1])]
    subject.offline = frozenset()
    (answer,) = subject.ask()
    assert [(each.leader_id, each.offline_replicas) for each in answer.partitions] == [(1, []), (1, [])]


def test_forms_are_told_apart_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(monkeypatch, state(topic("t")))
    for version in range(13):
        for operations in (None, 7):
            (answer,) = subject.ask((version, operations))
            expected = 7 if operations == 7 and version >= 8 else -(2**31)
            assert (answer.name, answer.topic_authorized_operations) == ("t", expected)
    assert len(subject.topics._forms) == MAX_FORMS
    subject.metadata = state(topic("u"))
    assert [one.name for one in subject.ask((5, None))] == ["u"]
    # No form keeps anything of the old state.
    assert {one.metadata for one in subject.topics._forms.values()} == {subject.metadata}


async def test_many_partitions_are_encoded_in_slices_and_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices_module, "SLICE_S", 0.0)
    topics = [topic("large", 3 * AT_ONCE), *(topic(f"t{number}", 10) for number in range(AT_ONCE // 5))]
    subject = Subject(monkeypatch, state(*topics))
    asked = [subject.topics.encoded(FORM, None), subject.topics.encoded(FORM, topics[:1])]
    at_work = asyncio.gather(*map(_awaited, asked), subject_after(subject, topics))
    slices = 0
    while len(subject.encoded) < len(topics):
        before, slices = len(subject.encoded), slices + 1
        await asyncio.sleep(0)
        assert len(subject.encoded) - before <= AT_ONCE // 10 + 1
    assert slices >= 5
    everything, one, later = await at_work
    assert [len(each.partitions) for each in decoded(everything)] == [3 * AT_ONCE] + [10] * (AT_ONCE // 5)
    assert [each.name for each in decoded(one)] == ["large"]
    # The state changed meanwhile: earlier requests got the old one, later requests the new one.
    assert [each.name for each in decoded(later)] == ["large", "new"]
    assert sorted(subject.encoded) == sorted(set(subject.encoded))


async def _awaited(encoded: Encoded | Awaitable[Encoded]) -> Encoded:
    return encoded if isinstance(encoded, Encoded) else await encoded


async def subject_after(subject: Subject, topics: list[TopicRecord]) -> Encoded:
    """Request a newer state while the old one is being encoded, after its first topic."""
    await subject.begun.wait()
    subject.metadata = state(topics[0], topic("new"))
    return await _awaited(subject.topics.encoded(FORM, None))


@pytest.mark.parametrize("version", range(13))
def test_encoded_elements_are_what_a_list_of_them_is(version: int) -> None:
    partitions = [MetadataResponsePartition(0, index, 1, 3, [1, 2], [1], [2]) for index in range(3)]
    topics = [
        MetadataResponseTopic(0, f"t{number}", uuid.uuid4(), False, partitions) for number in range(200)
    ]
    brokers = [metadata.MetadataResponseBroker(1, "host", 9092, "rack")]
    codec = Codec(MetadataResponseTopic, metadata.API.flexible)
    shared = Encoded(len(topics), b"".join(codec.encode(version, one) for one in topics))
    plain = metadata.API.encode_response(version, MetadataResponse(0, brokers, "c", 1, topics))
    for given, expected in ((shared, plain), (Encoded(0, b""), None)):
        answer = MetadataResponse(0, brokers, "c", 1, given)  # type: ignore[arg-type]
        expected = expected or metadata.API.encode_response(version, MetadataResponse(0, brokers, "c", 1, []))
        assert metadata.API.encode_response(version, answer) == expected
        assert b"".join(metadata.API.encode_response_parts(version, answer)) == expected


def test_no_byte_of_what_is_shared_is_copied() -> None:
    shared = Encoded(100, bytes(10_000))
    parts = metadata.API.encode_response_parts(12, MetadataResponse(topics=shared))  # type: ignore[arg-type]
    assert any(part is shared.data for part in parts)


def test_configurations_may_be_encoded_before() -> None:
    configs = [CreatableTopicConfigs("k", "v", False, 5, False)] * 30
    codec = Codec(CreatableTopicConfigs, create_topics.API.flexible)
    shared: Any = Encoded(len(configs), b"".join(codec.encode(7, one) for one in configs))
    plain, other = (
        create_topics.API.encode_response(
            7, CreateTopicsResponse(0, [CreatableTopicResult("t", configs=given)])
        )
        for given in (configs, shared)
    )
    assert plain == other


def test_every_version_answers_all_and_some(shared_broker: InProcessBroker) -> None:
    """Over the wire: the response is the same for every way to request topics."""
    name = unique("encoded")
    with Wire(shared_broker.bootstrap) as wire:
        wire.create(name)
        for version in range(13):
            everything = MetadataRequest(None if version else [])
            all_topics = {one.name: one for one in wire.call(metadata.API, version, everything).topics}
            some = wire.call(
                metadata.API, version, MetadataRequest([MetadataRequestTopic(name=name)], False)
            ).topics
            assert some == [all_topics[name]]
            assert some[0].partitions[0].leader_id == 1
            none = wire.call(
                metadata.API, version, MetadataRequest([MetadataRequestTopic(name="no/name")], False)
            )
            assert [one.error_code for one in none.topics] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
