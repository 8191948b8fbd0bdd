"""Reconciles of a BatchLoad on Kubernetes: one records a run, the next one starts it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory
from millstream_harness.load_looks import (
    AT_ONCE,
    BROKERS,
    CLUSTER,
    ENDED,
    OFFSETS,
    OWN,
    PENDING,
    SOON,
    a_job,
    a_load,
    look,
    run_state,
    says,
    spark,
    written,
)
from millstream_operator.kafka.records import TopicIdentity
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import BatchLoad, decode_as
from millstream_operator.reconcile.common.objects import NotOurs
from millstream_operator.reconcile.load.apply import reconcile_load
from millstream_operator.reconcile.load.limits import check_image
from millstream_operator.resources.images import Images


def test_a_run_is_in_the_status_before_anything_is_started() -> None:
    found = in_memory(CLUSTER, a_load(), **BROKERS)
    assert look(found) == AT_ONCE
    assert found.status("BatchLoad", "daily")["offsets"] == OFFSETS
    assert written(found) == []
    assert look(found) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"]
    assert run_state(found) == "Pending"


@pytest.mark.parametrize("before", ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"])
def test_an_operator_that_dies_between_two_writes_of_a_start(before: str) -> None:
    found = in_memory(CLUSTER, a_load(), **BROKERS)
    look(found)
    found.kube.refused_writes[before] = KubeError(500, "", "died")
    with pytest.raises(KubeError, match="died"):
        look(found)
    found.kube.refused_writes.clear()
    found.brokers.answers["offsets"] = lambda wanted, **_: dict.fromkeys(
        wanted, 99
    )  # more records have arrived
    assert look(found) == SOON
    assert sorted(written(found)) == ["ConfigMap", "Job", "RoleBinding", "ServiceAccount"], "each once"
    told = json.loads(found.kube.objects["ConfigMap", "daily-0001-u-daily"]["data"]["run.json"])
    assert told["offsets"] == [{"topic": "flights", "partition": 0, "from": 2, "until": 10}]
    assert found.status("BatchLoad", "daily")["offsets"] == OFFSETS


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_a_run_keeps_its_runner_when_an_edit_names_another(runner: str) -> None:
    there, other = (a_job(), "SparkApplication") if runner == "Job" else (spark(), "Job")
    found = in_memory(CLUSTER, a_load(PENDING, runner=other), there)
    assert look(found) == SOON
    assert written(found) == []
    theirs = {**there, "metadata": {**OWN, "ownerReferences": [{"uid": "u-somebody"}]}}
    found = in_memory(CLUSTER, a_load(PENDING, runner=other), theirs)
    look(found)
    assert written(found)[-1] == other


def test_a_watch_that_is_behind_begins_no_second_run() -> None:
    found = in_memory(CLUSTER, a_load(PENDING), **BROKERS)
    assert look(found, seen=a_load()) == SOON
    assert found.brokers.asked == []
    assert found.kube.applied_names("Job") == ["daily-0001-u-daily"]


def test_a_load_that_is_gone_begins_nothing() -> None:
    assert look(in_memory(CLUSTER, **BROKERS), seen=a_load()) == ENDED


def test_a_deleted_load_is_left_to_kubernetes() -> None:
    found = in_memory(CLUSTER, {**a_load(), "metadata": {**a_load()["metadata"], **deleted(1)}}, **BROKERS)
    assert look(found) == ENDED
    assert found.kube.applied == []


def paused(found: InMemory, value: str | None = "true") -> InMemory:
    annotations = {"millstream.dev/paused": value} if value else {}
    found.kube.objects["BatchLoad", "daily"]["metadata"]["annotations"] = annotations
    return found


def test_a_paused_load_begins_no_run_until_it_is_resumed() -> None:
    found = paused(in_memory(CLUSTER, a_load(), **BROKERS))
    assert look(found) == SOON
    words = "no run starts: paused by annotation millstream.dev/paused; remove it to resume"
    assert says(found) == ("False", "ReconcilePaused", words)
    assert (says(found, "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert "lastRun" not in found.status("BatchLoad", "daily")
    assert look(paused(found, None)) == AT_ONCE
    assert says(found, "Paused") is None
    assert run_state(found) == "Pending"


def test_a_run_that_has_begun_is_not_started_while_its_load_is_paused() -> None:
    found = paused(in_memory(CLUSTER, a_load(PENDING), **BROKERS))
    assert look(found) == SOON
    assert written(found) == []
    assert look(paused(found, None)) == SOON
    assert written(found) == ["ServiceAccount", "RoleBinding", "ConfigMap", "Job"]


def test_a_run_that_was_started_goes_on_and_is_followed_when_its_load_is_paused() -> None:
    found = in_memory(CLUSTER, a_load(PENDING), **BROKERS)
    look(found)
    found.kube.applied.clear()
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    found.kube.objects["Job", "daily-0001-u-daily"]["status"] = ended
    look(paused(found))
    assert run_state(found) == "Succeeded"
    assert (says(found, "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert written(found) == []
    look(paused(found, None))
    assert says(found, "Paused") is None
    look(paused(found))
    assert (says(found, "Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert run_state(found) == "Succeeded"


def test_a_load_waits_for_records() -> None:
    found = in_memory(CLUSTER, a_load(minRecords=9), **BROKERS)
    assert look(found) == SOON
    assert says(found, "Succeeded") == ("Unknown", "WaitingForRecords", "8 of 9 records")


def at(position: str, moment: Any) -> dict[str, Any]:
    if position == "Timestamp":
        return {"position": position, "timestamp": moment}
    offsets = [{"topic": "flights", "partition": 0, "offset": moment}]
    return {"position": position, "offsets": offsets}


@pytest.mark.parametrize(
    ("spec", "brokers", "there", "reason", "words"),
    [
        ({"output": {"path": "/lake"}}, BROKERS, True, "InvalidSpec", "allowed: a folder on a volume"),
        ({"spark": {"image": "mine"}}, BROKERS, True, "InvalidSpec", "spec.spark.image: mine is not allowed"),
        ({}, BROKERS, False, "ClusterNotFound", "default"),
        ({}, {"identities": {}}, True, "TopicNotFound", "flights in the cluster: create it, or correct"),
        (
            {"from": {"position": "Offsets", "offsets": []}},
            BROKERS,
            True,
            "InvalidSpec",
            "an offset for every partition is required; missing: flights-0",
        ),
        (
            {"from": at("Offsets", 5), "until": at("Offsets", 4)},
            BROKERS,
            True,
            "InvalidSpec",
            "spec.until: 4 of flights-0 is not allowed: it is before its spec.from; allowed: 5 or above",
        ),
        (
            {
                "from": at("Timestamp", "2026-11-20T00:00:00Z"),
                "until": at("Timestamp", "2026-11-19T00:00:00Z"),
            },
            BROKERS,
            True,
            "InvalidSpec",
            "it is before spec.from; allowed: 2026-11-20T00:00:00Z or later",
        ),
        (
            {},
            {**BROKERS, "identities": {"flights": TopicIdentity("T1", 20_000)}},
            True,
            "InvalidSpec",
            "spread the topics over several BatchLoads",
        ),
    ],
    ids=["output", "image", "cluster", "topic", "offsets", "until", "time", "partitions"],
)
def test_a_run_that_cannot_begin_says_why_and_is_tried_again(
    spec: dict[str, Any], brokers: dict[str, Any], there: bool, reason: str, words: str
) -> None:
    """Nothing that could change the table is started."""
    found = in_memory(*([CLUSTER] if there else []), a_load(**spec), **brokers)
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", reason)
    assert words in (says(found) or ())[2]
    assert "lastRun" not in found.status("BatchLoad", "daily")
    assert written(found) == []


def test_without_its_cluster_a_run_is_not_started() -> None:
    found = in_memory(a_load(PENDING))
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", "ClusterNotFound")
    assert written(found) == []


def test_an_output_volume_gets_an_owner_where_it_needs_one() -> None:
    host = {"kind": "StorageClass", "metadata": {"name": "host"}, "provisioner": "kubernetes.io/host-path"}
    metadata = {"namespace": "ns", "name": "lake"}
    claim = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"storageClassName": "host"}}
    for objects, owner in (([host, claim], True), ([claim], False)):
        output = {"path": "/lake/flights", "volumeClaimName": "lake"}
        found = in_memory(CLUSTER, a_load(PENDING, output=output, spark={"image": "mine"}), *objects)
        images = Images(spark="spark:1", spark_allowed=("mine",))
        services = dataclasses.replace(found.services, images=images)
        reconcile_load(services, decode_as(BatchLoad, found.kube.objects["BatchLoad", "daily"]))
        pod = found.kube.objects["Job", "daily-0001-u-daily"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "mine"
        made = [(one["name"], one["image"]) for one in pod.get("initContainers", ())]
        assert made == ([("volume-owner", "spark:1")] if owner else []), (
            "what is root runs no code of a user's"
        )


@pytest.mark.parametrize("status", [{}, PENDING], ids=["before a run", "before a start"])
def test_the_volume_of_a_broker_is_not_an_output(status: dict[str, Any]) -> None:
    labels = {"millstream.dev/cluster": "default", "app.kubernetes.io/component": "broker"}
    metadata = {"namespace": "ns", "name": "data-default-brokers-0", "labels": labels}
    claim = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}}
    output = {"path": "/lake/flights", "volumeClaimName": "data-default-brokers-0"}
    found = in_memory(CLUSTER, a_load(status, output=output), claim, **BROKERS)
    assert look(found) == SOON
    problem = says(found) or ()
    assert problem[:2] == ("False", "InvalidSpec")
    assert "data-default-brokers-0 is not allowed: it is a volume of Cluster default" in problem[2]


@pytest.mark.parametrize("status", [{}, PENDING], ids=["before a run", "before a start"])
def test_a_volume_that_a_broker_may_get_later_is_not_an_output(status: dict[str, Any]) -> None:
    output = {"path": "/lake/flights", "volumeClaimName": "data-default-brokers-1"}
    found = in_memory(CLUSTER, a_load(status, output=output), **BROKERS)
    assert look(found) == SOON
    assert "data-default-brokers-1 is not allowed: a Cluster names its volumes so" in (says(found) or ())[2]
    assert written(found) == []


@pytest.mark.parametrize(
    ("path", "image"), [("/opt/flights", None), ("/lake/flights", "mine")], ids=["path", "image"]
)
def test_a_spec_that_changes_before_the_start_is_checked_again(path: str, image: str | None) -> None:
    """Otherwise the author could have a valid run start with other code."""
    spark = {"image": image} if image else {}
    found = in_memory(
        CLUSTER, a_load(PENDING, output={"path": path, "volumeClaimName": "lake"}, spark=spark), **BROKERS
    )
    assert look(found) == SOON
    assert (says(found) or ())[:2] == ("False", "InvalidSpec")
    assert written(found) == []


@pytest.mark.parametrize(
    ("image", "allowed", "fits"),
    [
        (None, (), True),
        ("spark:1", (), True),  # the operator's own
        ("mine", (), False),
        ("mine", ("mine",), True),
        ("mine:2", ("mine",), False),
        ("registry.example/spark/x:2", ("other", "registry.example/spark/*"), True),
        ("registry.example/evil", ("registry.example/spark/*",), False),
        ("registry.example/sparky", ("registry.example/spark/*",), False),
    ],
)
def test_images_that_a_load_may_name(image: str | None, allowed: tuple[str, ...], fits: bool) -> None:
    load = decode_as(BatchLoad, a_load(spark={"image": image} if image else {}))
    problem = check_image(load, Images(spark="spark:1", spark_allowed=allowed))
    assert (problem is None) is fits
    assert problem is None or "allowed: spark:1" in problem.message


@pytest.mark.parametrize("runner", ["Job", "SparkApplication"])
def test_a_runner_of_somebody_else_is_not_taken_for_ours(runner: str) -> None:
    metadata = {"namespace": "ns", "name": "daily-0001-u-daily"}
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    theirs = {"kind": runner, "metadata": metadata, "status": complete}
    found = in_memory(CLUSTER, a_load(PENDING, runner=runner), theirs)
    with pytest.raises(
        NotOurs, match=f"^{runner} daily-0001-u-daily exists and does not belong to this BatchLoad"
    ):
        look(found)
    assert found.kube.applied == []


def test_a_service_account_of_somebody_else_is_left_alone() -> None:
    theirs = {"kind": "ServiceAccount", "metadata": {"namespace": "ns", "name": "millstream-spark"}}
    found = in_memory(CLUSTER, a_load(PENDING), theirs)
    with pytest.raises(NotOurs, match=r"^ServiceAccount millstream-spark exists"):
        look(found)
    assert found.kube.applied == []


def test_a_schedule_is_looked_at_when_its_time_has_come() -> None:
    found = in_memory(CLUSTER, a_load(schedule={"cron": "0,1 * * * *"}), **BROKERS)  # it is 08:00:00
    assert look(found) == 60
    assert says(found) == ("True", "Scheduled", "the first run begins at 2026-11-22T08:01:00Z")
    assert written(found) == []


def iceberg(table: str) -> dict[str, Any]:
    return {"format": "Iceberg", "path": "/lake/warehouse", "volumeClaimName": "a", "table": table}


@pytest.mark.parametrize(
    ("theirs", "mine", "taken"),
    [
        ({"path": "s3a://bucket/flights/"}, {"path": "s3a://bucket/flights"}, "is"),
        ({"path": "s3a://bucket/flights"}, {"path": "s3a://bucket/others"}, ""),
        ({"path": "s3a://bucket/flights"}, {"path": "s3a://bucket/flights-b"}, ""),
        ({"path": "s3a://bucket/flights"}, {"path": "s3a://bucket/flights/b"}, "is inside"),
        ({"path": "/lake/x", "volumeClaimName": "a"}, {"path": "/lake/x", "volumeClaimName": "a"}, "is"),
        ({"path": "/lake/x", "volumeClaimName": "a"}, {"path": "/lake//./x/", "volumeClaimName": "a"}, "is"),
        ({"path": "/lake/x", "volumeClaimName": "a"}, {"path": "/lake", "volumeClaimName": "a"}, "contains"),
        ({"path": "/lake/x", "volumeClaimName": "b"}, {"path": "/lake/x", "volumeClaimName": "a"}, ""),
        (iceberg("db.flights"), iceberg("db.flights"), "is"),
        (iceberg("db.flights"), iceberg("db.others"), ""),
    ],
)
def test_a_table_belongs_to_the_oldest_load(theirs: dict[str, Any], mine: dict[str, Any], taken: str) -> None:
    older = a_load(output=theirs)
    older["metadata"] |= {"name": "older", "uid": "u-older", "creationTimestamp": "2025-01-01T00:00:00Z"}
    found = in_memory(CLUSTER, older, a_load(output=mine), **BROKERS)
    assert look(found) == (SOON if taken else AT_ONCE)
    if taken:
        field = "table" if "table" in mine else "path"
        words = (
            f"spec.output.{field}: {mine[field]} {taken} the table of BatchLoad older, which is older: "
            f"choose another {field}"
        )
        assert (says(found) or ())[:2] == ("False", "ConflictingTable")
        assert (says(found) or ())[2].startswith(words)
        assert written(found) == []
    # The older load already has this table.
    assert reconcile_load(found.services, decode_as(BatchLoad, older)) == AT_ONCE
