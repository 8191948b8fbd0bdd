"""How-to pages about Kubernetes, as a reader runs them.

The pages' commands name no namespace: they use that of the kubeconfig's context, which is the test's here. The tests of
this module are one story and run in their order: the Cluster and the Topic of the backup serve those that follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from millstream_harness.chart import ROOT
from millstream_harness.kube import Json, Namespace, kubeconfig, run
from millstream_harness.kubernetes_pages import BACKUP, GITOPS, LEASES, MIGRATION, SECRET
from millstream_harness.pages import SITE, blocks, commands, run_command
from millstream_harness.specs import LOAD, MIRROR, manifest, workload

LOOKS = {"get", "describe", "logs", "explain", "api-resources", "events"}
NAMES = {
    **dict.fromkeys(("NAME", "three", "west-to-east", "east-to-west", "workers", "billing"), "shop"),
    "orders": "invoices",
    "POD": "shop-brokers-0",
    "KIND": "cluster",
}
"""Names in commands of pages, and of what is there."""
STRIMZI = "my-cluster-kafka-bootstrap.kafka.svc"


@pytest.fixture
def environment(namespace: Namespace, tmp_path: Path) -> dict[str, str]:
    """A kubeconfig whose context has the test's namespace, by the command of the backup's page."""
    kubeconfig(tmp_path / "kubeconfig", here="default")
    found = {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    command = "kubectl config set-context --current --namespace shop"
    run_command(BACKUP.page, tmp_path, command, replace={"shop": namespace.name}, env=found)
    return found


def test_a_backup_is_restored(environment: dict[str, str], tmp_path: Path) -> None:
    BACKUP.run(tmp_path, env=environment)


def test_a_cluster_is_moved(environment: dict[str, str], namespace: Namespace, tmp_path: Path) -> None:
    """The restored Cluster stands for the Strimzi cluster of the page."""
    MIGRATION.run(tmp_path, replace={STRIMZI: f"shop-bootstrap.{namespace.name}.svc"}, env=environment)
    said = namespace.kubectl(
        "exec",
        "client",
        "--",
        "millstream",
        "--bootstrap",
        "new-bootstrap:9092",
        "group",
        "describe",
        "audit",
    )
    assert "group audit" in said
    assert "lag 0" in said


def test_a_program_publishes_from_a_pod(
    environment: dict[str, str], namespace: Namespace, tmp_path: Path
) -> None:
    """The program and the topic of the data engineer's tutorial, in the restored Cluster."""
    page = ROOT / "docs/tutorials/data-engineer.md"
    by_title = {block.title: block.text for block in blocks(page.read_text())}
    resources = yaml.safe_load_all(by_title["clicks/clicks.yaml"].replace("name: web}", "name: shop}"))
    (topic,) = (one for one in resources if one["kind"] == "Topic")
    namespace.apply(topic)
    namespace.wait_condition("topic.millstream.dev", "clicks")
    (tmp_path / "publish.py").write_text(by_title["publish.py"])
    command = "kubectl exec -i client -- python3 - 0 300 < publish.py"
    run_command(page, tmp_path, command, env=environment)
    describe = ("millstream", "--output", "json", "topic", "describe", "clicks")
    described = json.loads(namespace.kubectl("exec", "client", "--", *describe))
    assert sum(one["latest"] - one["earliest"] for one in described["partitions"]) == 300


def test_a_change_in_git_is_checked(
    environment: dict[str, str], namespace: Namespace, tmp_path: Path
) -> None:
    GITOPS.run(tmp_path, replace={"namespace: orders": f"namespace: {namespace.name}"}, env=environment)


def test_leases_show_who_acts(environment: dict[str, str], tmp_path: Path) -> None:
    LEASES.run(tmp_path, env=environment)


def test_the_secret_of_a_lake(environment: dict[str, str], namespace: Namespace, tmp_path: Path) -> None:
    SECRET.run(tmp_path, env=environment)
    assert namespace.get("secret", "lake-writer")["data"].keys() == {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    }


def paused(kind: str, spec: object) -> Json:
    """A resource that the operator leaves alone."""
    about = {"name": "shop", "annotations": {"millstream.dev/paused": "true"}}
    return {**manifest(kind, spec), "metadata": about}


@pytest.fixture
def of_each_kind(namespace: Namespace) -> None:
    """A resource `shop` of each kind, beside the Cluster and the Topic of the backup."""
    group = {"clusterRef": {"name": "shop"}, "topics": ["invoices"], "workload": workload()}
    for resource in (
        paused("ConsumerGroup", group),
        paused("MirrorMaker", MIRROR),
        paused("BatchLoad", LOAD),
    ):
        namespace.apply(resource)


@pytest.mark.usefixtures("of_each_kind")
def test_commands_in_sentences_that_look_work(environment: dict[str, str], namespace: Namespace) -> None:
    """Those that watch look once, and a log is that of a pod that did not restart."""
    seen = set()
    for page in SITE:
        for words in commands(page, "kubectl", in_blocks=False):
            verb = next((word for word in words if word in LOOKS), None)
            if verb is None or len(words) == 1:
                continue
            command = " ".join(word for word in words if word not in ("-w", "--watch", "--previous"))
            for name, ours in {**NAMES, "NS": namespace.name}.items():
                command = re.sub(rf"\b{name}\b", ours, command)
            command = command.replace("--namespace shop", f"--namespace {namespace.name}")
            if command not in seen:
                run("env", f"KUBECONFIG={environment['KUBECONFIG']}", "bash", "-c", f"kubectl {command}")
                seen.add(command)
    assert len(seen) > 20


@pytest.mark.usefixtures("of_each_kind")
def test_consumers_are_scaled(environment: dict[str, str], namespace: Namespace, tmp_path: Path) -> None:
    replace = {"NAME": f"shop --namespace {namespace.name}", "=N": "=3"}
    command = "kubectl scale consumergroup.millstream.dev NAME --replicas=N"
    run_command(ROOT / "docs/groups.md", tmp_path, command, replace=replace)
    assert namespace.get("consumergroup.millstream.dev", "shop")["spec"]["workload"]["replicas"] == 3


def manifests() -> Iterator[Json]:
    """Every whole manifest on a page, and every example."""
    for page in SITE:
        for block in blocks(page.read_text()):
            if block.language == "yaml" and block.text.startswith("apiVersion: "):
                yield from yaml.safe_load_all(block.text)
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        yield from yaml.safe_load_all(file.read_text())


def test_the_api_server_takes_every_manifest(namespace: Namespace) -> None:
    """All in one namespace, each with a name of its own; nothing is created."""
    found = list(manifests())
    assert len(found) > 60
    for number, one in enumerate(found):
        one["metadata"].pop("namespace", None)
        one["metadata"]["name"] += f"-{number}"
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": found}).encode()
    namespace.kubectl("apply", "--dry-run=server", "-f", "-", stdin=everything)
