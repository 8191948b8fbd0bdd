"""An upgrade by helm from an earlier release, with a Cluster under load.

The earlier release is derived from this checkout's chart: an older version, images by another name, CRDs without a
field and a column, values and templates without later additions. The upgrade, and the wait for its end, are the
commands of docs/operations.md.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from millstream_harness.chart import CHART, KINDS, SYSTEM, VERSION, install, remove
from millstream_harness.kube import Json, Namespace, run
from millstream_harness.kubernetes_pages import TUTORIAL, UPGRADE
from millstream_harness.pages import run_command
from millstream_harness.rolls import (
    CLUSTER,
    KIND,
    Paced,
    ids,
    measured,
    names_on_pages,
    nothing_is_lost,
    pods,
    renewed,
    settled,
    under_load,
)

EARLIER = "0.0.9"
WINDOWS = {"windows": [{"days": [], "start": "00:00", "end": "23:59"}]}


def earlier_chart(folder: Path) -> Path:
    """This checkout's chart as an earlier release might have had it."""
    chart = shutil.copytree(CHART, folder / "millstream")

    def edit(name: str, text: str) -> None:
        (chart / name).write_text(text)

    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    edit("Chart.yaml", yaml.safe_dump({**about, "version": EARLIER, "appVersion": EARLIER}))
    values = yaml.safe_load((chart / "values.yaml").read_text())
    for name in ("operator", "broker", "spark"):
        values["images"][name] = {"repository": f"docker.io/millstream/{name}", "tag": VERSION}
    del values["monitoring"]
    edit("values.yaml", yaml.safe_dump(values))
    schema = json.loads((chart / "values.schema.json").read_text())
    schema["required"].remove("monitoring")
    edit("values.schema.json", json.dumps(schema))
    (chart / "templates/monitoring.yaml").unlink()
    crd = yaml.safe_load((chart / "crds/clusters.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["maintenance"]
    version["additionalPrinterColumns"] = [
        one for one in version["additionalPrinterColumns"] if one["name"] != "Reason"
    ]
    edit("crds/clusters.yaml", yaml.safe_dump(crd))
    return chart


@pytest.fixture(scope="module")
def paced(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Paced:
    """A Cluster of the earlier release; the tutorial's command removes the definitions first."""
    remove()
    assert len(defined()) == len(KINDS), "an uninstall leaves the definitions"
    command = "kubectl delete crd -l app.kubernetes.io/part-of=millstream"
    run_command(TUTORIAL.page, tmp_path_factory.mktemp("reader"), command)
    assert not defined()
    install(default_cluster=False, chart=earlier_chart(tmp_path_factory.mktemp("earlier")))
    return under_load(namespace)


def defined() -> list[str]:
    """The names of our CRDs."""
    names = run("kubectl", "get", "crd", "-o", "name").splitlines()
    return [one for one in names if one.endswith(".millstream.dev")]


def definition() -> Json:
    """The Cluster CRD's only version."""
    found: Json = json.loads(run("kubectl", "get", "crd", "clusters.millstream.dev", "-o", "json"))
    version: Json = found["spec"]["versions"][0]
    return version


def columns() -> set[str]:
    return {one["name"] for one in definition()["additionalPrinterColumns"]}


def operator_image() -> str:
    deployment = SYSTEM.get("deployment", "millstream-operator")
    image: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def images(namespace: Namespace) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods(namespace).values()}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def one_at_a_time(found: dict[str, Json]) -> None:
    """No pod was created before the previous one was ready."""
    ordered = sorted(found.values(), key=lambda pod: moment(pod["metadata"]["creationTimestamp"]))
    for earlier, later in itertools.pairwise(ordered):
        (ready,) = (one for one in earlier["status"]["conditions"] if one["type"] == "Ready")
        made = later["metadata"]["creationTimestamp"]
        assert moment(ready["lastTransitionTime"]) <= moment(made), (ready, made)


def test_an_upgrade_under_load(namespace: Namespace, paced: Paced, tmp_path: Path) -> None:
    assert "Reason" not in columns()
    assert images(namespace) == {f"docker.io/millstream/broker:{VERSION}"}
    before, since = ids(pods(namespace)), time.time()
    UPGRADE.run(tmp_path, replace=names_on_pages(namespace))
    assert "Reason" in columns()
    assert operator_image() == f"millstream/operator:{VERSION}"
    assert renewed(namespace, before, 3)(), "the page waits for the end of the upgrade"
    assert settled(namespace)
    assert images(namespace) == {f"millstream/broker:{VERSION}"}
    one_at_a_time(pods(namespace))
    measured(paced, "an upgrade", since)
    namespace.patch(KIND, CLUSTER, {"spec": {"maintenance": WINDOWS}})
    assert namespace.get(KIND, CLUSTER)["spec"]["maintenance"] == WINDOWS


def test_nothing_that_was_acknowledged_is_lost(namespace: Namespace, paced: Paced) -> None:
    nothing_is_lost(namespace, paced)


def test_a_rollback_goes_back_and_keeps_the_definitions(namespace: Namespace, tmp_path: Path) -> None:
    run_command(UPGRADE.page, tmp_path, "helm rollback millstream --namespace millstream-system")
    SYSTEM.kubectl("rollout", "status", "deployment/millstream-operator", "--timeout=2m")
    assert operator_image() == f"docker.io/millstream/operator:{VERSION}"
    assert "Reason" in columns()
    namespace.wait_condition(KIND, CLUSTER, "Upgrading", reason="Upgrading")
    assert namespace.get(KIND, CLUSTER)["spec"]["maintenance"] == WINDOWS
