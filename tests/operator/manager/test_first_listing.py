"""Nothing is reconciled before all kinds are listed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, MemoryKube, deleted, in_memory, stored
from millstream_harness.manifests import cluster, topic
from millstream_operator.handlers import CONTROLLERS
from millstream_operator.kafka.records import TopicState
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.manager import resync as listing
from millstream_operator.manager.controller import Manager
from millstream_operator.state.status import FINALIZER

pytestmark = pytest.mark.process

CLUSTER = stored(cluster("default"))
THERE = TopicState("id", 1, 1, 0, {})


def unseen(*resources: Mapping[str, Any], **answers: Any) -> InMemory:
    """The API server has these resources, and the watches have shown none of them."""
    found = in_memory(*resources, **answers)
    found.services.store.__init__()  # type: ignore[misc]
    return found


@contextlib.asynccontextmanager
async def running(found: InMemory) -> AsyncIterator[Manager]:
    manager = Manager(found.services, {"Topic": CONTROLLERS["Topic"]}, ["ns"])
    task = asyncio.create_task(manager.run())
    yield manager
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(check: Any) -> None:
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A kind for each time that it was listed; whoever waits for resources lists again at once."""
    found: list[str] = []
    versions = MemoryKube.versions

    def count(self: MemoryKube, api_version: str, kind: str, namespace: str | None) -> Any:
        answer = versions(self, api_version, kind, namespace)
        found.append(kind)
        return answer

    monkeypatch.setattr(listing, "AGAIN_S", 0.1)
    monkeypatch.setattr(MemoryKube, "versions", count)
    return found


async def waits(listings: list[str]) -> None:
    """Wait until the operator has listed again, several times, because something is missing."""
    before = listings.count("Topic")
    await until(lambda: listings.count("Topic") > before + 4)


async def test_a_younger_topic_waits_for_an_older_one_to_be_listed(listings: list[str]) -> None:
    older = stored(topic("old", topicName="flights", partitions=1))
    younger = stored(
        topic("new", topicName="flights", partitions=5), creationTimestamp="2026-02-01T00:00:00Z"
    )
    found = unseen(CLUSTER, older, younger, topics={"flights": THERE})
    async with running(found) as manager:
        manager.seen(None, CLUSTER)
        manager.seen(None, younger)
        await waits(listings)
        assert found.kube.applied == []
        manager.seen(None, older)
        await until(lambda: len(found.kube.applied) == 2)
    assert found.brokers.asked == [("topics", ["flights"])]
    assert (found.condition("Topic", "new") or ())[1] == "ConflictingTopic"
    assert (found.condition("Topic", "old") or ())[1] == "TopicReady"


async def test_a_topic_that_is_being_deleted_waits_for_its_cluster_to_be_listed(listings: list[str]) -> None:
    doomed = stored(topic("flights", deletionPolicy="Delete"), **deleted(1))
    found = unseen(CLUSTER, doomed, delete_topics={"flights": None})
    async with running(found) as manager:
        manager.seen(None, doomed)
        await waits(listings)
        assert found.kube.applied == []
        assert found.kube.objects["Topic", "flights"]["metadata"]["finalizers"] == [FINALIZER]
        manager.seen(None, CLUSTER)
        await until(lambda: not found.kube.objects["Topic", "flights"]["metadata"]["finalizers"])
    assert found.brokers.asked == [("delete_topics", {"flights": None})]


async def test_a_namespace_without_rights_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    found = unseen(CLUSTER)
    found.kube.refused["Topic"] = KubeError(403, "Forbidden", "topics is forbidden")
    found.services.store.put(CLUSTER)
    await listing.listed(found.services, ["ns"])
    assert "cannot list Topic in namespace ns, continuing without: topics is forbidden" in caplog.messages


async def test_what_is_deleted_before_it_is_listed_is_not_waited_for(listings: list[str]) -> None:
    gone = stored(topic("gone"))
    found = unseen(CLUSTER, gone)
    waiting = asyncio.create_task(listing.listed(found.services, ["ns"]))
    await until(lambda: "Topic" in listings)
    found.services.store.put(CLUSTER)
    assert not waiting.done()
    del found.kube.objects["Topic", "gone"]
    await waiting


async def test_an_api_server_that_does_not_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listing, "AGAIN_S", 0.01)
    found = in_memory(CLUSTER)
    found.kube.refused["Cluster"] = KubeError(0, "Unreachable", "away")
    waiting = asyncio.create_task(listing.listed(found.services, []))
    await until(lambda: caplog.messages)
    assert caplog.messages[0] == "cannot list resources, retrying: away"
    assert not waiting.done()
    found.kube.refused.clear()
    await waiting
