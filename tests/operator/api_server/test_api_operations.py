"""Runs the steps of docs/operations.md on the real API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from millstream_harness.kube import Namespace, run
from millstream_harness.manifests import cluster, topic
from millstream_harness.tools import require
from millstream_operator import __version__
from millstream_operator.state.status import FINALIZER
from millstream_operator.tools.hooks import VERSION

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs/operations.md").read_text()


def test_resources_that_are_left_without_an_operator_are_freed(namespace: Namespace) -> None:
    for name, finalizers in {"held": [FINALIZER], "free": []}.items():
        manifest = topic(name)
        namespace.apply({**manifest, "metadata": {**manifest["metadata"], "finalizers": finalizers}})
    namespace.kubectl("delete", "topics.millstream.dev", "held", "--wait=false")
    assert namespace.get("topics.millstream.dev", "held")["metadata"]["deletionTimestamp"]
    (command,) = re.findall(r"```sh\n(kubectl get topics.*?)```", DOCUMENT, re.DOTALL)
    run("bash", "-c", command.replace("--all-namespaces", f"--namespace={namespace.name}"))
    left = [one["metadata"]["name"] for one in namespace.list("topics.millstream.dev")]
    assert left == ["free"]


def test_a_script_knows_when_a_change_is_over(namespace: Namespace) -> None:
    namespace.apply(cluster("east"))
    (function,) = re.findall(r"```sh\n(settled\(\).*?\n}\n)", DOCUMENT, re.DOTALL)
    script = function.replace("NAMESPACE", namespace.name).replace("NAME", "east") + "settled"
    generation = namespace.get("clusters.millstream.dev", "east")["metadata"]["generation"]

    def settled(observed: int, **conditions: str) -> bool:
        common = {"reason": "Because", "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        told = [{"type": kind, "status": status, **common} for kind, status in conditions.items()]
        status = json.dumps({"status": {"observedGeneration": observed, "conditions": told}})
        namespace.kubectl(
            "patch", "clusters.millstream.dev", "east", "--subresource=status", "--type=merge", "-p", status
        )
        return subprocess.run(["bash", "-c", script], capture_output=True, timeout=60).returncode == 0

    assert not settled(generation)
    assert settled(generation, Ready="True")
    assert settled(generation, Ready="True", Paused="False")
    assert not settled(generation, Ready="False")
    assert not settled(generation - 1, Ready="True")
    for kind in ("RollingUpdate", "Rebalancing", "Upgrading"):
        assert not settled(generation, **{"Ready": "True", kind: "True"})
    assert not settled(generation, Ready="True", Upgrading="False")


def test_the_upgrade_hook_brings_definitions_to_its_version_while_resources_stay(
    namespace: Namespace, tmp_path: Path
) -> None:
    """The hook's own program, with the chart's rights for it and a changed CRD."""
    namespace.apply(topic("kept"))
    before = namespace.get("topics.millstream.dev", "kept")["metadata"]["uid"]
    chart = [require("helm"), "template", "here", str(ROOT / "charts/millstream"), "-n", namespace.name]
    chart += ["--kube-version", "1.34"]
    documents = [one for one in yaml.safe_load_all(run(*chart)) if one]
    account = "here-millstream-operator-crds"
    rights = [one for one in documents if one["metadata"]["name"] in (account, f"{namespace.name}:{account}")]
    rights = [one for one in rights if one["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    assert len(rights) == 3
    definition = yaml.safe_load((ROOT / "crds/topics.yaml").read_text())
    definition["metadata"].setdefault("annotations", {})["millstream.dev/changed-by"] = namespace.name
    (tmp_path / "topics.yaml").write_text(yaml.safe_dump(definition))
    try:
        for manifest in rights:
            namespace.apply(manifest)
        admin = json.loads(run("kubectl", "config", "view", "--raw", "--minify", "-o", "json"))
        admin["users"][0]["user"] = {"token": namespace.kubectl("create", "token", account).strip()}
        (tmp_path / "kubeconfig").write_text(json.dumps(admin))
        hook = [sys.executable, "-m", "millstream_operator.tools.hooks", "apply-crds", str(tmp_path)]
        env = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")}
        done = subprocess.run(hook, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "applied topics.yaml\n"), done.stderr
        # a CRD of an older chart: the newer one stays
        older = {**definition, "metadata": {**definition["metadata"], "annotations": {VERSION: "0.0.9"}}}
        (tmp_path / "topics.yaml").write_text(yaml.safe_dump(older))
        done = subprocess.run(hook, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"kept topics.millstream.dev of the newer release {__version__}: ")
        # a CRD of a release that cannot be compared, and back
        for version in ("9.0.0-rc1", __version__):
            definition["metadata"]["annotations"][VERSION] = version
            (tmp_path / "topics.yaml").write_text(yaml.safe_dump(definition))
            done = subprocess.run(hook, env=env, capture_output=True, text=True)
            assert (done.returncode, done.stdout) == (0, "applied topics.yaml\n"), done.stderr
    finally:
        for manifest in rights[1:]:
            run("kubectl", "delete", manifest["kind"], manifest["metadata"]["name"], "--ignore-not-found")
    live = json.loads(run("kubectl", "get", "crd", "topics.millstream.dev", "-o", "json"))
    assert live["metadata"]["annotations"]["millstream.dev/changed-by"] == namespace.name
    assert namespace.get("topics.millstream.dev", "kept")["metadata"]["uid"] == before
