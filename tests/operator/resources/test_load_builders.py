"""BatchLoad: the objects of a run."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from millstream_harness import loads
from millstream_harness.java import ROOT
from millstream_harness.spark_operator import schema
from millstream_jobs.load import AVRO_LIMITS
from millstream_jobs.run import read_run
from millstream_jobs.value import OPTIONS
from millstream_operator.models import BatchLoad, BatchLoadStatus, OffsetRange, Run, decode_as
from millstream_operator.models.conditions import Reason
from millstream_operator.models.load import Asked, Committed, Unsettled, Written
from millstream_operator.models.load_run import ObservedRun, RunState
from millstream_operator.models.references import expanded
from millstream_operator.reconcile.load.ranges import Ends
from millstream_operator.resources import load as resources
from millstream_operator.resources import load_output
from millstream_operator.resources.images import Images, SparkRole
from millstream_operator.resources.load_job import job
from millstream_operator.resources.load_run_file import run_file, run_id
from millstream_operator.resources.load_spark_application import spark_application
from millstream_operator.resources.pod_access import PodAccess
from millstream_operator.resources.volumes import UserIds
from millstream_operator.validation.schema import validate

IMAGES = Images(spark="registry.example/millstream/spark:1", pull_policy="Always")


def a_load(**spec: Any) -> BatchLoad:
    load = decode_as(
        BatchLoad,
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "BatchLoad",
            "metadata": {"name": "daily", "namespace": "flights", "uid": "u-1"},
            "spec": {
                "clusterRef": {"name": "default"},
                "topics": ["flights"],
                "value": {"format": "JSON", "schema": "carrier STRING, date DATE"},
                "output": {"path": "/lake/flights", "volumeClaimName": "lake", "partitionBy": ["date"]},
                **spec,
            },
        },
    )
    status = BatchLoadStatus(
        last_run=Run(name="daily-0001-u-1", state="Pending"),
        offsets=(OffsetRange(topic="flights", partition=0, from_=0, until=56129),),
    )
    return msgspec.structs.replace(load, status=status)


def driver_container(load: BatchLoad) -> dict[str, Any]:
    container: dict[str, Any] = job(load, IMAGES)["spec"]["template"]["spec"]["containers"][0]
    return container


def conf_of(load: BatchLoad) -> dict[str, str]:
    arguments = driver_container(load)["args"]
    return dict(after.split("=", 1) for flag, after in itertools.pairwise(arguments) if flag == "--conf")


def restricted(pod: dict[str, Any]) -> bool:
    """Whether the "restricted" Pod Security Standard accepts it."""
    whole = pod["securityContext"]
    return (
        whole["runAsNonRoot"]
        and whole["runAsUser"] == 185
        and whole["seccompProfile"] == {"type": "RuntimeDefault"}
        and all(
            container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            and not container["securityContext"]["allowPrivilegeEscalation"]
            and container["securityContext"]["readOnlyRootFilesystem"]
            for container in pod["containers"]
        )
    )


def test_the_runs_file_is_what_the_job_reads(tmp_path: Path) -> None:
    load = a_load()
    data = resources.config_map(load, PodAccess("default-bootstrap.flights.svc:9092"), IMAGES)["data"]
    file = tmp_path / "run.json"
    file.write_text(data["run.json"])
    run = read_run(file)
    assert run.name == "daily-0001-u-1", "its rows are not those of another load of that name"
    assert run.bootstrap == "default-bootstrap.flights.svc:9092"
    assert [(part.topic, part.partition, part.first, part.until) for part in run.offsets] == [
        ("flights", 0, 0, 56129)
    ]
    assert run.value.schema == "carrier STRING, date DATE"
    assert (run.output.path, run.output.partition_by) == ("/lake/flights", ("date",))
    assert run.result == "/dev/termination-log"


def test_a_run_names_its_topics_and_its_first_one_must_find_no_rows(tmp_path: Path) -> None:
    """The status is all that a load knows about a table: a recreated load knows nothing of its predecessor's table."""

    def told(load: BatchLoad, **changed: Any) -> tuple[dict[str, str], str]:
        status = msgspec.structs.replace(load.status, **changed)
        file = tmp_path / "run.json"
        manifest = run_file(msgspec.structs.replace(load, status=status), PodAccess("b:1"), result="")
        file.write_text(json.dumps(manifest))
        run = read_run(file)
        return run.topic_ids, run.output.mode

    identity = "FFoprDM1SJK7NOYIyM9Pww"
    offsets = (OffsetRange(topic="flights", partition=0, from_=0, until=1, topic_id=identity),)
    asked = Asked(generation=1, spec="s", from_="f", positions="p", path="/lake/flights")
    assert told(a_load(), offsets=offsets, asked=asked) == ({"flights": identity}, "New")
    here = Committed(path="/lake/flights", from_="f", offsets=())
    assert told(a_load(), asked=asked, committed=here) == ({}, "New"), "the status of an older release"
    written = Written(path="/lake/flights", run="daily-0000-u-1-n", since=("daily-0001-u-1-n",))
    assert told(a_load(), asked=asked, committed=here, written=written) == ({}, "Append")
    elsewhere = msgspec.structs.replace(here, path="/lake/others")
    assert told(a_load(), asked=asked, committed=elsewhere)[1] == "New"
    rerun = Run(name="daily-0001-u-1", trigger="Rerun")
    assert told(a_load(), asked=asked, last_run=rerun)[1] == "New", "nothing was loaded before"
    assert told(a_load(), asked=asked, committed=here, last_run=rerun)[1] == "Append", "it adds rows again"
    failed = Unsettled(id="daily-0000-u-1", path="/lake/flights", positions="others", offsets=offsets)
    known = {"asked": asked, "committed": here, "written": written}
    assert told(a_load(), **known, unsettled=failed)[1] == "New", "it may have published"
    repeated = msgspec.structs.replace(failed, id="daily-0001-u-1")
    assert told(a_load(), **known, unsettled=repeated)[1] == "Append"
    again = a_load(**{"from": {"position": "Earliest", "requestId": "1"}})
    assert told(again, asked=asked)[1] == "Append"
    assert told(again, **known, unsettled=failed)[1] == "New", "the request is done"


def fence_of(load: BatchLoad) -> dict[str, Any]:
    found: dict[str, Any] = run_file(load, PodAccess("b:1"), result="")["fence"]
    return found


def later(partition_0: int) -> loads.Partitions:
    return {**loads.MORE, ("flights", 0): Ends(0, partition_0, topic_id="T1")}


def test_a_run_names_the_last_run_whose_rows_the_table_must_have() -> None:
    def id_of(number: int) -> str:
        return f"daily-{number:04}-{loads.NONCE}"

    load = loads.started(loads.a_load())
    assert fence_of(load) == {}, "the first run"
    load = loads.started(loads.ended(load, value={"format": "Binary"}), partitions=loads.MORE)
    assert fence_of(load) == {"after": id_of(1)}
    lost = ObservedRun(RunState.FAILED, error="the driver is lost")
    again = loads.started(loads.ended(load, lost, value={"format": "Text"}), partitions=loads.MORE)
    assert (run_id(again), fence_of(again)) == (id_of(2), {"after": id_of(1)}), "repeated"
    edit: dict[str, Any] = {"topics": ["flights", "other"]}
    load = loads.started(loads.ended(load, lost, **edit), partitions=loads.MORE)
    assert fence_of(load) == {"after": id_of(1), "failed": [id_of(2)]}
    rerun = {"requestId": "july", "from": {"position": "Earliest"}}
    load = loads.started(loads.ended(load, lost, **edit, rerun=rerun), partitions=loads.MORE)
    assert fence_of(load) == {"after": id_of(1), "failed": [id_of(2), id_of(3)], "request": "rerun july"}
    edit |= {"rerun": rerun}
    load = loads.started(loads.ended(load, **edit, value={"format": "Text"}), partitions=loads.MORE)
    assert (run_id(load), fence_of(load)) == (id_of(5), {"after": id_of(4)}), "after the rerun's rows"
    load = loads.started(loads.ended(load, **edit), partitions=later(131))
    assert fence_of(load) == {"after": id_of(5)}
    nothing = loads.ended(load, **edit, value={"format": "Binary"})
    begin = {"from": {"position": "Committed", "requestId": "x"}}
    accepts = loads.started(loads.ended(load, **edit, **begin), partitions=later(140))
    assert fence_of(accepts) == {"request": "from x"}, "its user accepts the table as it is"
    goes_on = loads.ended(accepts, **edit, **begin, value={"format": "Binary"})
    goes_on = loads.started(goes_on, partitions=later(150))
    assert fence_of(goes_on) == {"after": id_of(7)}, "the request is done"
    without = loads.started(loads.ended(accepts, **edit), partitions=later(150))
    assert (fence_of(without), mode_of(without)) == ({"after": id_of(7)}, "Append"), (
        "removing from accepts nothing"
    )
    other = {"output": {"path": "/lake/others", "volumeClaimName": "lake"}}
    assert fence_of(loads.started(loads.ended(load, **edit, **other), partitions=later(140))) == {}
    assert fence_of(loads.started(nothing, partitions=later(140))) == {"after": id_of(6)}


def test_a_run_that_was_fenced_is_not_repeated() -> None:
    load = loads.started(
        loads.ended(loads.started(loads.a_load()), value={"format": "Binary"}), partitions=loads.MORE
    )
    fenced = ObservedRun(RunState.FAILED, error="fenced", reason=Reason.FENCED)
    load = loads.ended(load, fenced)
    assert load.status.unsettled is None
    load = loads.started(loads.edited(load, value={"format": "Binary"}), partitions=loads.MORE)
    assert run_id(load) == f"daily-0003-{loads.NONCE}"
    assert (fence_of(load), mode_of(load)) == ({"after": f"daily-0001-{loads.NONCE}"}, "Append")


def test_a_run_that_an_older_release_began_keeps_the_name_of_its_rows() -> None:
    load = a_load()
    older = msgspec.structs.replace(load, status=BatchLoadStatus(last_run=Run(name="daily-0001")))
    assert run_file(older, PodAccess("b:1"), result="")["name"] == "daily-0001-u-1"
    assert run_file(load, PodAccess("b:1"), result="")["name"] == "daily-0001-u-1"


@pytest.mark.parametrize(
    "value",
    [
        {"format": "CSV", "schema": "a INT", "options": {"delimiter": ";"}, "maxCorruptRecords": "0.1%"},
        {"format": "JSON", "schema": "at TIMESTAMP", "timeColumn": "at", "maxCorruptRecords": 7},
        {"format": "Avro", "schemaRegistry": {"url": "http://registry:8081"}},
        {"format": "Text"},
    ],
)
def test_values_and_records_are_read_by_the_job_as_the_spec_says(
    tmp_path: Path, value: dict[str, Any]
) -> None:
    load = a_load(value=value, record={"key": "Text", "headers": True}, minPartitions=16)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run_file(load, PodAccess("b:1"), result="")))
    run = read_run(file)
    told = msgspec.to_builtins(run.value)
    assert {name: told[name] for name in value} == value
    assert (run.record.key, run.record.headers, run.min_partitions) == ("Text", True, 16)


def test_a_run_that_begins_at_a_time_leaves_out_older_records() -> None:
    at = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    later = {"position": "Timestamp", "timestamp": "2026-11-21T00:00:00Z"}
    load = a_load(**{"from": at, "rerun": {"requestId": "again", "from": later}})
    assert run_file(load, PodAccess("b:1"), result="")["fromTimestamp"] == "2026-11-20T00:00:00+00:00"
    run = msgspec.structs.replace(load.status.last_run, trigger="Rerun", request_id="again")
    rerun = msgspec.structs.replace(load, status=msgspec.structs.replace(load.status, last_run=run))
    assert run_file(rerun, PodAccess("b:1"), result="")["fromTimestamp"] == "2026-11-21T00:00:00+00:00"
    assert "fromTimestamp" not in run_file(a_load(), PodAccess("b:1"), result="")


def test_every_way_to_run_the_job_has_the_same_limits_on_avro() -> None:
    manifests = ROOT / "spark-operator-jobs" / "manifests"
    assert (
        resources.AVRO_LIMITS
        == AVRO_LIMITS
        == resources.spark_conf(a_load())["spark.executor.extraJavaOptions"]
    )
    assert AVRO_LIMITS in (manifests / "job.yaml").read_text()
    assert AVRO_LIMITS in (manifests / "spark-application.yaml").read_text()


def test_the_options_that_the_definition_allows_are_those_of_the_job() -> None:
    spec = yaml.safe_load((ROOT / "crds" / "batchloads.yaml").read_text())["spec"]["versions"][0]["schema"]
    rules = spec["openAPIV3Schema"]["properties"]["spec"]["properties"]["value"]["x-kubernetes-validations"]
    for name, options in OPTIONS.items():
        assert f"value.options: allowed with format {name}: {', '.join(options)}" in [
            rule["message"] for rule in rules
        ]


def test_an_outputs_store_and_catalog_are_in_the_runs_file_and_its_credentials_are_not(
    tmp_path: Path,
) -> None:
    load = a_load(
        output={
            "path": "s3a://lake/warehouse",
            "format": "Iceberg",
            "table": "flights.daily",
            "targetFileSize": "128Mi",
            "catalog": {"type": "JDBC", "uri": "jdbc:postgresql://db/lake", "credentialsSecret": "catalog"},
            "s3": {"endpoint": "https://store:9000", "pathStyle": True, "credentialsSecret": "store"},
        }
    )
    data = resources.config_map(load, PodAccess("b:9092"), IMAGES)["data"]
    file = tmp_path / "run.json"
    file.write_text(data["run.json"])
    output = read_run(file).output
    assert (output.owner, output.table, output.target_file_size) == (
        "flights/daily",
        "flights.daily",
        128 << 20,
    )
    assert (output.s3.endpoint, output.s3.path_style) == ("https://store:9000", True)
    assert (output.catalog.type, output.catalog.uri) == ("JDBC", "jdbc:postgresql://db/lake")
    assert "store" not in json.loads(data["run.json"])["output"].values()

    executor = yaml.safe_load(data["executor.yaml"])["spec"]["containers"][0]
    application = spark_application(load, IMAGES)["spec"]["driver"]["template"]["spec"]["containers"][0]
    for container in (driver_container(load), executor, application):
        secrets = {
            variable["name"]: variable["valueFrom"]["secretKeyRef"]
            for variable in container["env"]
            if "secretKeyRef" in variable.get("valueFrom", {})
        }
        assert secrets["AWS_ACCESS_KEY_ID"] == {
            "name": "store",
            "key": "AWS_ACCESS_KEY_ID",
            "optional": False,
        }
        assert secrets["CATALOG_PASSWORD"] == {"name": "catalog", "key": "CATALOG_PASSWORD", "optional": True}
        assert all(name == one["key"] for name, one in secrets.items()), (
            "all that the admission policy allows"
        )
    assert not any("valueFrom" in variable for variable in a_plain_executor()["env"])


def test_a_rest_catalogs_sign_in_is_in_the_runs_file(tmp_path: Path) -> None:
    catalog = {
        "type": "REST",
        "uri": "https://catalog/api",
        "warehouse": "lake",
        "oauth2ServerUri": "https://login/token",
        "scope": "PRINCIPAL_ROLE:ALL",
    }
    load = a_load(output={"path": "/lake", "format": "Iceberg", "table": "flights.daily", "catalog": catalog})
    file = tmp_path / "run.json"
    file.write_text(resources.config_map(load, PodAccess("b:9092"), IMAGES)["data"]["run.json"])
    given = read_run(file).output.catalog
    assert (given.warehouse, given.scope) == ("lake", "PRINCIPAL_ROLE:ALL")
    assert given.oauth2_server_uri == "https://login/token"


def a_plain_executor() -> dict[str, Any]:
    template = yaml.safe_load(
        resources.config_map(a_load(), PodAccess("b:9092"), IMAGES)["data"]["executor.yaml"]
    )
    container: dict[str, Any] = template["spec"]["containers"][0]
    return {"env": [], **container}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("$(AWS_SECRET_ACCESS_KEY)", "$(AWS_SECRET_ACCESS_KEY)"),
        ("x$$$(CATALOG_TOKEN)y", "x$$(CATALOG_TOKEN)y"),
        ("$$(CATALOG_TOKEN)", "$(CATALOG_TOKEN)"),
        ("$(POD_IP):$(OTHER)", "10.0.0.1:$(OTHER)"),
    ],
)
def test_a_templates_variable_shows_no_secret(value: str, shown: str) -> None:
    """Kubernetes would put earlier variables of the container into its value."""
    output = {
        "path": "s3a://lake/flights",
        "format": "Iceberg",
        "table": "a.b",
        "s3": {"credentialsSecret": "writer"},
        "catalog": {"type": "JDBC", "uri": "jdbc:postgresql://c/d", "credentialsSecret": "catalog"},
    }
    env = [{"name": "TZ", "value": value}]
    template = {"spec": {"containers": [{"name": "driver", "env": env}]}}
    of_executor = {"spec": {"containers": [{"name": "executor", "env": env}]}}
    load = a_load(
        output=output, spark={"driver": {"template": template}, "executor": {"template": of_executor}}
    )
    pod = yaml.safe_load(resources.config_map(load, PodAccess("b:9092"), IMAGES)["data"]["executor.yaml"])
    application = spark_application(load, IMAGES)["spec"]
    containers = [driver_container(load), *pod["spec"]["containers"]]
    containers += [
        one for role in ("driver", "executor") for one in application[role]["template"]["spec"]["containers"]
    ]
    secret = dict.fromkeys((*load_output.S3_CREDENTIALS, *load_output.CATALOG_CREDENTIALS), "secret")
    for container in containers:
        assert {"AWS_SECRET_ACCESS_KEY", "CATALOG_TOKEN"} <= {one["name"] for one in container["env"]}
        (told,) = (one["value"] for one in container["env"] if one["name"] == "TZ")
        assert expanded(told, {**secret, "POD_IP": "10.0.0.1"}) == shown


def test_binary_values_have_no_schema() -> None:
    assert run_file(a_load(value={"format": "Binary"}), PodAccess("b:1"), result="")["value"] == {
        "format": "Binary"
    }


def test_what_belongs_to_a_run_belongs_to_its_load() -> None:
    load = a_load()
    for manifest in (
        resources.config_map(load, PodAccess("b:9092"), IMAGES),
        job(load, IMAGES),
        spark_application(load, IMAGES),
    ):
        metadata = manifest["metadata"]
        assert (metadata["namespace"], metadata["name"]) == ("flights", "daily-0001-u-1")
        assert metadata["ownerReferences"][0]["uid"] == "u-1"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "millstream-operator"
    assert resources.config_map(load, PodAccess("b:9092"), IMAGES)["immutable"] is True


def test_the_job_runs_the_driver_in_its_pod() -> None:
    load = a_load(
        spark={"driver": {"memory": "1g"}, "executor": {"instances": 2, "cores": 3, "memory": "2g"}}
    )
    spec = job(load, IMAGES)["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (2, 86400)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["serviceAccountName"] == "millstream-spark"
    assert restricted(pod)
    container = driver_container(load)
    assert (container["image"], container["imagePullPolicy"]) == (
        "registry.example/millstream/spark:1",
        "Always",
    )
    assert container["command"] == ["/opt/spark/bin/spark-submit"]
    assert container["args"][-2:] == [resources.APPLICATION, "/etc/millstream/run.json"]
    assert container["resources"] == {
        "requests": {"cpu": "250m", "memory": "1434Mi"},
        "limits": {"memory": "1434Mi"},
    }
    conf = conf_of(load)
    assert conf["spark.submit.deployMode"] == "client"
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert (
        conf["spark.executor.instances"],
        conf["spark.executor.cores"],
        conf["spark.executor.memory"],
    ) == (
        "2",
        "3",
        "2g",
    )
    assert {entry["name"] for entry in container["env"]} == {"POD_IP", "POD_NAME"}


def test_the_output_volume_is_where_rows_are_written() -> None:
    load = a_load()
    executor = yaml.safe_load(
        resources.config_map(load, PodAccess("b:9092"), IMAGES)["data"]["executor.yaml"]
    )["spec"]
    for pod in (job(load, IMAGES)["spec"]["template"]["spec"], executor):
        assert {"name": "output", "persistentVolumeClaim": {"claimName": "lake"}} in pod["volumes"]
        assert {"name": "output", "mountPath": "/lake"} in pod["containers"][0]["volumeMounts"]
        assert restricted(pod)
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == names
    assert "output" not in json.dumps(resources.volumes(a_load(output={"path": "s3a://b/x"}), driver=True))


def test_sparks_page_has_a_port_where_it_is_asked_for() -> None:
    def ports(**conf: str) -> list[str]:
        return [port["name"] for port in driver_container(a_load(spark={"conf": conf}))["ports"]]

    assert ports() == ["driver", "blockmanager"]
    assert ports(**{"spark.ui.enabled": "true"}) == ["driver", "blockmanager", "spark-ui"]


def test_the_users_configuration_counts() -> None:
    conf = conf_of(
        a_load(
            spark={
                "conf": {
                    "spark.sql.shuffle.partitions": "4",
                    "spark.kubernetes.executor.request.cores": "100m",
                    "spark.ui.enabled": "true",
                }
            }
        )
    )
    assert conf["spark.sql.shuffle.partitions"] == "4"
    assert conf["spark.kubernetes.executor.request.cores"] == "100m"
    assert conf["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(("heap", "mib"), [("512m", 896), ("1g", 1434), ("4g", 5735), ("1048576k", 1434)])
def test_a_pods_memory_has_room_for_python(heap: str, mib: int) -> None:
    assert resources.memory_mib(heap) == mib


def test_the_spark_application_leaves_nothing_to_a_webhook() -> None:
    spec = spark_application(a_load(), IMAGES)["spec"]
    assert spec["mode"] == "cluster"
    assert spec["restartPolicy"].keys() == {
        "type",
        "onFailureRetries",
        "onFailureRetryInterval",
        "onSubmissionFailureRetries",
        "onSubmissionFailureRetryInterval",
    }
    assert spec["restartPolicy"]["type"] == "OnFailure"  # Always would run a batch again after success
    assert {"cores", "memory"} <= spec["driver"].keys()
    assert {"cores", "memory", "instances"} <= spec["executor"].keys()
    assert spec["mainApplicationFile"].startswith("local:///")
    # In a template, Spark finds its container by Spark's name for it.
    for role, name in (("driver", "spark-kubernetes-driver"), ("executor", "spark-kubernetes-executor")):
        pod = spec[role]["template"]["spec"]
        assert [container["name"] for container in pod["containers"]] == [name]
        assert restricted(pod)
        assert {"name": "output", "mountPath": "/lake"} in pod["containers"][0]["volumeMounts"]


def test_driver_service_has_the_family_of_kubernetes() -> None:
    key = "spark.kubernetes.driver.service.ipFamilies"  # Spark's default is IPv4
    assert key not in spark_application(a_load(), IMAGES)["spec"]["sparkConf"]
    only_ipv6 = dataclasses.replace(IMAGES, services_are_ipv6=True)
    assert spark_application(a_load(), only_ipv6)["spec"]["sparkConf"][key] == "IPv6"


@pytest.mark.process
def test_the_spark_application_is_one_to_its_own_schema() -> None:
    problems = list(validate(spark_application(a_load(), IMAGES), schema("sparkapplications")))
    assert problems == []


def test_the_driver_may_make_executors_in_its_namespace() -> None:
    binding = resources.role_binding("flights", SparkRole())
    assert binding["roleRef"]["name"] == "millstream-spark"
    of_the_namespace = resources.role_binding("flights", SparkRole("Role", "millstream-spark"))
    assert of_the_namespace["roleRef"]["kind"] == "Role"
    assert of_the_namespace["metadata"]["name"] != binding["metadata"]["name"]
    account = resources.service_account("flights")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "flights"}]


def test_no_pod_names_a_user_where_the_platform_assigns_them() -> None:
    images = dataclasses.replace(IMAGES, user_ids=UserIds.ASSIGNED)
    load = a_load()
    application = spark_application(load, images)["spec"]
    executor = yaml.safe_load(
        resources.config_map(load, PodAccess("b:9092"), images)["data"]["executor.yaml"]
    )["spec"]
    pods = [job(load, images)["spec"]["template"]["spec"], executor]
    pods += [application[role]["template"]["spec"] for role in ("driver", "executor")]
    for pod in pods:
        standard = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["securityContext"] == standard
        # Spark does not start as a user without a name: an init container of the same image adds one.
        (names,) = pod["initContainers"]
        assert names["image"] == IMAGES.spark
        assert (names["securityContext"]["readOnlyRootFilesystem"], names["command"][:2]) == (
            True,
            ["sh", "-c"],
        )
        assert {"name": "user", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True} in pod[
            "containers"
        ][0]["volumeMounts"]
        assert {"name": "user", "emptyDir": {}} in pod["volumes"]


def test_the_driver_asks_for_rights_on_pods_only() -> None:
    conf = conf_of(a_load())
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    for key in (
        "service.deleteOnTermination",
        "ownPersistentVolumeClaim",
        "reusePersistentVolumeClaim",
    ):
        assert conf[f"spark.kubernetes.driver.{key}"] == "false"


def mode_of(load: BatchLoad) -> str:
    return str(run_file(load, PodAccess("b:1"), result="")["output"].get("mode", "Append"))


@pytest.mark.parametrize("edit", [{"topics": ["flights", "other"]}, {"until": {"position": "Latest"}}])
def test_a_run_looks_for_the_rows_of_a_failed_one_that_it_does_not_repeat(edit: dict[str, Any]) -> None:
    """The failed run may have published; an edit of `from` says that records may come twice, no other edit does."""
    until = {"position": "Timestamp", "timestamp": "2036-01-01T00:00:00Z"}
    load = loads.ended(loads.started(loads.a_load(until=until)), until=until, value={"format": "Binary"})
    load = loads.started(load, partitions=loads.MORE)
    failed = load.status.last_run
    assert failed is not None
    assert mode_of(load) == "Append"
    lost = ObservedRun(RunState.FAILED, error="the driver is lost")
    load = loads.ended(load, lost, **({"until": until, "value": {"format": "Binary"}} | edit))
    repeated = loads.started(
        loads.edited(load, until=until, value={"format": "Binary"}), partitions=loads.MORE
    )
    assert loads.run_of(repeated).id == failed.id
    load = loads.started(load, partitions=loads.MORE)
    assert (loads.run_of(load).id, mode_of(load)) == (loads.run_of(load).name, "New")
    again = loads.started(loads.ended(load, lost, **edit, spark={}), partitions=loads.MORE)
    assert mode_of(again) == "New", "it looks for both failed runs' rows"
    done = loads.ended(again, value={"format": "Text"}, **edit)
    later = {**loads.MORE, ("flights", 0): Ends(0, 200, topic_id="T1")}
    assert mode_of(loads.started(done, partitions=later)) == "Append"


@pytest.mark.parametrize("ids", list(UserIds))
def test_pods_that_log_in_have_each_volume_once(ids: UserIds) -> None:
    """A pod of an assigned user has one more, with a name for the user."""
    load, images = a_load(), Images(user_ids=ids)
    access = PodAccess("b:9090", has_login=True, has_tls=True)
    started = resources.with_files_of_access(job(load, images), load, access)
    executor = yaml.safe_load(resources.config_map(load, access, images)["data"]["executor.yaml"])
    for pod in (started["spec"]["template"]["spec"], executor["spec"]):
        names = [one["name"] for one in pod["volumes"]]
        assert len(names) == len(set(names)), names
