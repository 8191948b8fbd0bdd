"""Jobs accept the files in spark-operator-jobs/manifests, which run this version's image."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from millstream_harness.java import ROOT
from millstream_harness.spark_operator import schema
from millstream_jobs import __version__
from millstream_jobs.audits.file import read_audit
from millstream_jobs.compact import read_compact
from millstream_jobs.publish_file import read_publish
from millstream_jobs.rewind import read_rewind
from millstream_jobs.run import read_run
from millstream_jobs.stream import read_stream
from millstream_operator.models import User, decode_as
from millstream_operator.validation.schema import validate

JOBS: dict[str, Callable[[Path], Any]] = {
    "rewind": read_rewind,
    "publish": read_publish,
    "compact": read_compact,
    "stream": read_stream,
    "audit": read_audit,
}
MANIFESTS = ROOT / "spark-operator-jobs" / "manifests"


def manifest(file: str, kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((MANIFESTS / file).read_text())
    found: dict[str, Any] = next(one for one in documents if one["kind"] == kind)
    return found


def test_the_run_can_be_run(tmp_path: Path) -> None:
    config_map = manifest("run.yaml", "ConfigMap")
    path = tmp_path / "run.json"
    path.write_text(config_map["data"]["run.json"])
    run = read_run(path)
    assert run.name == config_map["metadata"]["name"]
    assert run.records == 2000


def test_both_runners_run_it_in_this_versions_image() -> None:
    name = manifest("run.yaml", "ConfigMap")["metadata"]["name"]
    pod = manifest("job.yaml", "Job")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    application = manifest("spark-application.yaml", "SparkApplication")["spec"]
    driver = application["driver"]["template"]["spec"]
    assert container["image"] == application["image"] == f"millstream/spark:{__version__}"
    assert [*container["args"]] == [
        application["mainApplicationFile"].removeprefix("local://"),
        *application["arguments"],
    ]
    for volumes in (pod["volumes"], driver["volumes"]):
        assert {"name": "run", "configMap": {"name": name}} in volumes


@pytest.mark.parametrize(("job", "read"), JOBS.items())
def test_other_jobs_run_by_the_same_runners(job: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    config_map = manifest(f"{job}.yaml", "ConfigMap")
    path = tmp_path / "run.json"
    path.write_text(config_map["data"]["run.json"])
    assert read(path).name == config_map["metadata"]["name"]
    command = (MANIFESTS / f"{job}.yaml").read_text()
    assert f"sed 's/flights-by-hand/flights-{job}/; s/load.py/{job}.py/' job.yaml" in command
    assert config_map["metadata"]["name"] == f"flights-{job}"
    assert f"src/millstream_jobs/{job}.py" in (MANIFESTS.parent / "Dockerfile").read_text()


def test_the_secured_audit_is_the_other_one_with_a_user_and_its_files(tmp_path: Path) -> None:
    user = decode_as(
        User, {**manifest("secured.yaml", "User"), "metadata": {"namespace": "ns", "name": "flights-audit"}}
    )
    (tmp_path / "run.json").write_text(manifest("secured.yaml", "ConfigMap")["data"]["run.json"])
    (tmp_path / "open.json").write_text(manifest("audit.yaml", "ConfigMap")["data"]["run.json"])
    wanted, without = read_audit(tmp_path / "run.json"), read_audit(tmp_path / "open.json")
    assert wanted.login is not None
    assert wanted.tls is not None
    assert structs.replace(wanted, login=None, tls=None) == without
    assert user.spec.authorization is not None
    allowed = {(one.resource.type, one.resource.name): one.operations for one in user.spec.authorization.acls}
    of_topics = {("topic", name): ("Read",) for name in (*wanted.topics, wanted.reports)}
    assert allowed == {**of_topics, ("group", "millstream-jobs"): ("Describe",)}
    secured = manifest("secured.yaml", "Job")
    pod = secured["spec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if "projected" in one)
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"])
    assert mount["mountPath"] == wanted.login.folder == str(Path(wanted.tls.ca_file).parent)
    assert volume["projected"]["sources"][0]["secret"]["name"] == user.name
    pod["volumes"].remove(volume)
    pod["containers"][0]["volumeMounts"].remove(mount)
    text = json.dumps(manifest("job.yaml", "Job"))
    assert secured == json.loads(
        text.replace("load.py", "audit.py").replace("flights-by-hand", "flights-audit")
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("spark-application.yaml", "SparkApplication"),
        ("scheduled-spark-application.yaml", "ScheduledSparkApplication"),
    ],
)
def test_kubeflows_operator_knows_every_field(file: str, kind: str) -> None:
    assert list(validate(manifest(file, kind), schema(f"{kind.lower()}s"))) == []
    wrong = manifest(file, kind)
    wrong["spec"]["mainFile"] = "load.py"
    assert list(validate(wrong, schema(f"{kind.lower()}s"))) != []


def test_the_scheduled_application_is_the_other_one_with_another_job() -> None:
    text = json.dumps(manifest("spark-application.yaml", "SparkApplication")["spec"])
    compact = json.loads(text.replace("load.py", "compact.py").replace("flights-by-hand", "flights-compact"))
    assert (
        manifest("scheduled-spark-application.yaml", "ScheduledSparkApplication")["spec"]["template"]
        == compact
    )


def test_the_spark_application_needs_no_webhook() -> None:
    """Kubeflow's webhook would set these fields; the manifest sets them itself."""
    spec = manifest("spark-application.yaml", "SparkApplication")["spec"]
    assert spec["mode"] == "cluster"
    assert spec["restartPolicy"].keys() >= {
        "type",
        "onFailureRetryInterval",
        "onSubmissionFailureRetryInterval",
    }
    for role in ("driver", "executor"):
        assert spec[role].keys() >= {"cores", "memory", "template"}
    assert spec["executor"]["instances"] == 1
