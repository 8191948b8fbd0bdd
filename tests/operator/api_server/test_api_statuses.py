"""Statuses and deletions on the real API server: an operator with an old view changes nothing newer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream_harness.kube import Namespace
from millstream_harness.manifests import topic
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_harness.scenario import unique
from millstream_operator.kubernetes.client import Kube, KubeError
from millstream_operator.models import API_VERSION, BatchLoad, BatchLoadStatus, Topic, TopicStatus, decode_as
from millstream_operator.models.keys import Key
from millstream_operator.models.load import OffsetRange, Run
from millstream_operator.state.context import Services
from millstream_operator.state.status import write_status

pytestmark = pytest.mark.process

LOAD = {
    "apiVersion": API_VERSION,
    "kind": "BatchLoad",
    "metadata": {"name": "daily"},
    "spec": {
        "clusterRef": {"name": "default"},
        "topics": ["flights"],
        "value": {"format": "Binary"},
        "output": {"path": "s3a://bucket/flights"},
    },
}


@pytest.fixture
def kube(api_server: None) -> Kube:
    return Kube.connect()


@pytest.fixture
def namespace(module_namespace: Namespace) -> Namespace:
    return module_namespace


@pytest.fixture
def name() -> str:
    """Of the test's resource: the tests share a namespace."""
    return unique("flights")


def an_operator(kube: Kube, namespace: Namespace, kind: str, name: str) -> tuple[Services, Any]:
    """An operator that has seen the current resource, and the resource."""
    services = services_on_kubernetes(kube)
    live = kube.get(API_VERSION, kind, namespace.name, name)
    assert live is not None
    services.store.put(live)
    return services, live


def pinned(until: int) -> BatchLoadStatus:
    offsets = (OffsetRange(topic="flights", partition=0, from_=0, until=until),)
    return BatchLoadStatus(last_run=Run(name="daily-1", state="Pending"), offsets=offsets)


def test_a_second_operator_cannot_pin_other_offsets_for_the_same_run(
    namespace: Namespace, kube: Kube
) -> None:
    namespace.apply(LOAD)
    first, seen = an_operator(kube, namespace, "BatchLoad", "daily")
    second, _ = an_operator(kube, namespace, "BatchLoad", "daily")
    load = decode_as(BatchLoad, seen)
    assert write_status(first, load, pinned(100))
    assert not write_status(second, load, pinned(200))
    key = Key("BatchLoad", namespace.name, "daily")
    for services in (first, second):
        found = services.store.get(BatchLoad, namespace.name, "daily")
        assert found is not None
        assert found.status == pinned(100)
    assert second.store.take_woken() == {key}, "it looks again, at what the first one wrote"


def test_a_spec_that_changed_meanwhile_keeps_no_status_away(
    namespace: Namespace, kube: Kube, name: str
) -> None:
    namespace.apply(topic(name))
    services, seen = an_operator(kube, namespace, "Topic", name)
    namespace.patch("topics.millstream.dev", name, {"spec": {"config": {"retention.ms": "1000"}}})
    flights = decode_as(Topic, seen)
    assert write_status(services, flights, TopicStatus(observed_generation=1, partitions=3))
    assert namespace.get("topics.millstream.dev", name)["status"]["partitions"] == 3
    now = services.store.get(Topic, namespace.name, name)
    assert now is not None
    assert now.spec.config == {"retention.ms": "1000"}
    assert services.store.take_woken() == {Key("Topic", namespace.name, name)}


def test_a_status_is_not_written_on_a_resource_that_was_made_anew(
    namespace: Namespace, kube: Kube, name: str
) -> None:
    namespace.apply(topic(name))
    services, seen = an_operator(kube, namespace, "Topic", name)
    namespace.kubectl("delete", "topics.millstream.dev", name)
    namespace.apply(topic(name))
    assert not write_status(services, decode_as(Topic, seen), TopicStatus(partitions=3))
    assert "status" not in namespace.get("topics.millstream.dev", name)


def test_a_pod_that_was_made_anew_is_not_deleted(namespace: Namespace, kube: Kube) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
    namespace.apply(config_map)
    before = namespace.get("configmap", "one")["metadata"]["uid"]
    namespace.kubectl("delete", "configmap", "one")
    namespace.apply(config_map)
    assert not kube.delete("v1", "ConfigMap", namespace.name, "one", uid=before)
    now = namespace.get("configmap", "one")["metadata"]["uid"]
    assert kube.delete("v1", "ConfigMap", namespace.name, "one", uid=now)
    assert not kube.delete("v1", "ConfigMap", namespace.name, "one", uid=now)


def test_a_write_that_may_not_be_is_not_sent(namespace: Namespace, kube: Kube) -> None:
    def refuse() -> None:
        raise KubeError(0, "NotLeading", "no")

    kube.fence = refuse
    with pytest.raises(KubeError, match="no"):
        kube.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "one", "namespace": namespace.name},
            }
        )
    assert kube.get("v1", "ConfigMap", namespace.name, "one") is None


def test_what_we_do_not_know_of_a_status_is_no_change_of_it(
    namespace: Namespace, kube: Kube, name: str
) -> None:
    """A later version's status has fields that this version does not read."""
    namespace.apply(topic(name))
    services, seen = an_operator(kube, namespace, "Topic", name)
    seen["status"] = {"partitions": 3, "fromLater": True}
    services.store.put({**seen, "metadata": {**seen["metadata"]}})
    view = msgspec.structs.replace(decode_as(Topic, seen), status=TopicStatus(partitions=3))
    assert write_status(services, view, TopicStatus(partitions=4))
