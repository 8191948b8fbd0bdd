"""The rendered chart: invalid values fail, rights are minimal, and the operator accepts the options."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_harness.chart import VERSION
from millstream_harness.kube import CommandFailed, run
from millstream_harness.tools import require
from millstream_operator.models import GROUP, KINDS, Cluster, MirrorMaker
from millstream_operator.resources import mirror as mirrors
from millstream_operator.resources import owned
from millstream_operator.validation.admission import decode

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/millstream"
POLICY = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def render(*settings: str, release: str = "millstream", namespace: str = "ms") -> list[dict[str, Any]]:
    return [one for one in yaml.load_all(text_of(settings, release, namespace), Loader=LOADER) if one]


@functools.cache
def text_of(settings: tuple[str, ...], release: str, namespace: str) -> str:
    helm = require("helm")
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    arguments += ["--kube-version", "1.34", "--api-versions", POLICY]
    return run(helm, "template", release, str(CHART), "-n", namespace, *arguments)


def of_kind(documents: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    return next(d for d in documents if d["kind"] == kind and name in (None, d["metadata"]["name"]))


def test_the_default_cluster_is_one_that_the_operator_takes() -> None:
    rendered = of_kind(render("cluster.config.log\\.cleanup\\.policy=compact"), "Cluster")
    cluster = decode(rendered)
    assert isinstance(cluster, Cluster)
    assert cluster.spec.config == {"log.cleanup.policy": "compact"}
    assert cluster.spec.brokers.storage.deletion_policy == "Retain"
    assert [d for d in render("cluster.enabled=false") if d["kind"] in ("Cluster", "Pod")] == []
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_default_cluster_of_three() -> None:
    cluster = decode(of_kind(render("cluster.replicas=3", "cluster.zookeeper.replicas=3"), "Cluster"))
    assert isinstance(cluster, Cluster)
    assert cluster.spec.brokers.replicas == 3
    assert cluster.spec.zookeeper is not None
    assert cluster.spec.zookeeper.replicas == 3


def test_looking_at_nodes_is_a_right_that_can_be_kept() -> None:
    def may_read_nodes(*settings: str) -> bool:
        role = of_kind(render(*settings), "ClusterRole", "ms:millstream-operator-storage")
        return any("nodes" in rule["resources"] for rule in role["rules"])

    assert may_read_nodes()
    assert not may_read_nodes("operator.readNodes=false")


def test_versions_are_in_step() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    operator = of_kind(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert operator["image"] == f"millstream/operator:{VERSION}"
    assert f"--broker-image=millstream/broker:{VERSION}" in operator["args"]
    assert "--zookeeper-image=zookeeper:3.9" in operator["args"]


def test_images_that_batch_loads_may_name() -> None:
    documents = render("operator.sparkImages={registry.example/spark/*,other:1}")
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--broker-log-format=plain" in args
    assert [one for one in args if "allowed-spark" in one] == [
        "--allowed-spark-image=registry.example/spark/*",
        "--allowed-spark-image=other:1",
    ]


def test_pods_are_not_root_and_one_operator_at_a_time() -> None:
    for document in render():
        if document["kind"] not in ("Deployment", "Job", "Pod"):
            continue
        pod = document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert of_kind(render(), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def granted(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and kind."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for kind in rule["resources"]:
                found[group, kind].update(rule["verbs"])
    return found


@pytest.mark.parametrize(
    ("settings", "kind"), [((), "ClusterRole"), (("operator.watchNamespaces={ms}",), "Role")]
)
def test_rights_are_least(settings: tuple[str, ...], kind: str) -> None:
    documents = render(*settings)
    role = of_kind(documents, kind, "ms:millstream-operator")
    verbs = granted(role)
    assert not any("*" in (*key, *some) for key, some in verbs.items())
    without = granted(of_kind(render(*settings, "operator.users=false"), kind, "ms:millstream-operator"))
    assert {key: more for key, more in verbs.items() if more != without.get(key)} == {
        ("", "secrets"): {"get", "create", "patch"}
    }
    assert "delete" not in verbs["", "persistentvolumeclaims"] | verbs["apps", "statefulsets"]
    named = {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule}
    assert named == {
        "leases": ["millstream.dev"],
        "serviceaccounts": ["millstream-spark"],
        "rolebindings": [f"ms:millstream-operator-spark.{kind.lower()}"],
        f"{kind.lower()}s": ["ms:millstream-operator-spark"],
    }
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--spark-role={kind}/ms:millstream-operator-spark" in args
    spark = of_kind(documents, kind, "ms:millstream-operator-spark")
    assert granted(spark).keys() == {("", "pods")}, "no volumes, no configuration, no Services"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("operator.newClusters=Secure",), "Secure"),
        (("operator.newClusters=Open",), "Open"),
        (("operator.newClusters=Secure", "operator.users=false"), "Open"),
    ],
)
def test_new_clusters_are_secure_with_the_right_to_secrets_only(
    settings: tuple[str, ...], expected: str
) -> None:
    documents = render(*settings)
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--new-clusters={expected}" in args
    users = [one for one in documents if one["kind"] == "User"]
    pod = of_kind(documents, "Pod")["spec"]
    assert [decode(one).name for one in users] == (["millstream-roundtrip"] if expected == "Secure" else [])
    mounted = {one["secret"]["secretName"] for one in pod.get("volumes", ())}
    assert mounted == ({"millstream-roundtrip", "default-cluster-ca-cert"} if expected == "Secure" else set())


def test_defaults_of_the_listeners_of_the_first_cluster() -> None:
    cluster = decode(of_kind(render("cluster.listenerDefaults.tls=Disabled"), "Cluster"))
    assert isinstance(cluster, Cluster)
    assert cluster.spec.listener_defaults.tls == "Disabled"


def test_the_lease_of_a_release_is_its_own() -> None:
    for release, operator in (("millstream", "millstream-operator"), ("east", "east-millstream-operator")):
        documents = render(
            "operator.replicas=2", "cluster.enabled=false", release=release, namespace="system"
        )
        deployment = of_kind(documents, "Deployment")
        assert deployment["spec"]["replicas"] == 2
        assert f"--lease=system/{operator}" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        role = of_kind(documents, "Role", f"system:{operator}-lease")
        assert "namespace" not in role["metadata"], "that of the release"
        assert role["rules"] == [
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": [operator],
                "verbs": ["get", "create", "patch"],
            }
        ]
        hook = of_kind(documents, "Job", f"{operator}-release")["spec"]["template"]["spec"]["containers"][0]
        assert f"--lease=system/{operator}" in hook["command"]


def test_the_operator_may_hold_up_the_deletion_of_its_resources() -> None:
    verbs = granted(of_kind(render(), "ClusterRole", "ms:millstream-operator"))
    for kind in ("clusters", "mirrormakers", "batchloads"):
        assert verbs["millstream.dev", f"{kind}/finalizers"] == {"update"}


def test_rights_end_with_the_watched_namespaces() -> None:
    documents = render("operator.watchNamespaces={ms,flights}")
    name = "ms:millstream-operator"
    for kind in ("Role", "RoleBinding"):
        found = [d["metadata"] for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
        assert [metadata["namespace"] for metadata in found] == ["ms", "flights"]
    roles = [d["roleRef"] for d in documents if d["kind"] == "RoleBinding"]
    leases = of_kind(documents, "RoleBinding", f"{name}-lease")
    assert leases["roleRef"]["name"] == f"{name}-lease"
    assert {role["kind"] for role in roles} == {"Role"}
    # cluster-wide objects: storage classes, and CRDs (for the upgrade hook)
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        everywhere = [d["metadata"]["name"] for d in documents if d["kind"] == kind]
        assert sorted(everywhere) == [f"{name}-crds", f"{name}-storage"]
    (rule,) = of_kind(documents, "ClusterRole", f"{name}-crds")["rules"]
    definitions = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    assert rule["resourceNames"] == sorted(one["metadata"]["name"] for one in definitions)
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-2:] == ["--namespace=ms", "--namespace=flights"]


LONG = "r" * 53  # the longest name that helm allows


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("millstream", "east"), ("millstream", "west")),
        (("millstream", "ms"), ("other", "ms")),
        (("b", "a"), ("b", "a-b")),
        ((f"{LONG[:-1]}a", "ms"), (f"{LONG[:-1]}b", "ms")),
    ],
)
@pytest.mark.parametrize("watch", [True, False], ids=["watching", "everywhere"])
def test_releases_share_no_object(first: tuple[str, str], second: tuple[str, str], watch: bool) -> None:
    def objects(release: str, namespace: str) -> set[tuple[str, str, str]]:
        settings = ["cluster.enabled=false"]
        if watch:  # both releases watch a shared namespace, too
            settings.append(f"operator.watchNamespaces={{{namespace},shared}}")
        found = set()
        for document in render(*settings, release=release, namespace=namespace):
            metadata = document["metadata"]
            cluster_wide = document["kind"].startswith(("Cluster", "Validating"))
            where = "" if cluster_wide else metadata.get("namespace", namespace)
            found.add((document["kind"], where, metadata["name"]))
        return found

    assert objects(*first).isdisjoint(objects(*second))
    for kind, _, name in objects(*first):
        if "Role" not in kind:
            size = 252 if kind.startswith("Validating") else 62
            assert re.fullmatch(rf"[a-z0-9][-a-z0-9.]{{0,{size}}}", name), name


def test_admission_policies_bind_the_accounts_that_the_chart_makes() -> None:
    documents = render("operator.watchNamespaces={ms,flights}")
    policies = {
        d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy"
    }
    assert sorted(policies) == ["ms.millstream-operator", "ms.millstream-operator-spark"]
    bound = [d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {one["policyName"] for one in bound} == policies.keys()
    assert all(one["validationActions"] == ["Deny"] for one in bound)
    account = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    (condition,) = policies["ms.millstream-operator"]["matchConditions"]
    assert f'"system:serviceaccount:ms:{account}"' in condition["expression"]
    (condition,) = policies["ms.millstream-operator-spark"]["matchConditions"]
    assert '["ms","flights"]' in condition["expression"]
    # the policy covers everything that the operator may change
    ours = granted(of_kind(documents, "Role", "ms:millstream-operator"))
    (looked,) = policies["ms.millstream-operator"]["matchConstraints"]["resourceRules"]
    written = {
        kind
        for (group, kind), verbs in ours.items()
        if group != "millstream.dev" and verbs & {"patch", "delete"}
    }
    assert written == set(looked["resources"])
    off = render("operator.admissionPolicies=false")
    assert not any(d["kind"].startswith("Validating") for d in off)


def test_no_pod_names_a_user_where_the_platform_assigns_them() -> None:
    documents = render("operator.userIds=Assigned")
    assert "runAsUser" not in str(documents)
    assert "runAsNonRoot" in str(documents)
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--user-ids=Assigned" in args


def test_the_upgrade_hook_has_every_definition() -> None:
    data = of_kind(render(), "ConfigMap")["data"]
    assert data == {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}


def test_definitions_are_upgraded_and_never_taken_back() -> None:
    """A rollback would run the older chart's hooks, and its CRDs would drop stored fields of the newer one."""
    hooks = [one["metadata"].get("annotations", {}).get("helm.sh/hook") for one in render()]
    assert set(hooks) >= {"pre-upgrade", "post-delete"}
    assert not [hook for hook in hooks if hook and "rollback" in hook]


def test_the_hooks_rights_follow_from_the_definitions() -> None:
    rules = {
        one["metadata"]["name"].partition(":")[2]: [set(rule["resources"]) for rule in one["rules"]]
        for one in render()
        if one["kind"] == "ClusterRole"
    }
    names = [
        rule["resourceNames"]
        for one in render()
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
        if rule["resources"] == ["customresourcedefinitions"] and "patch" in rule["verbs"]
    ]
    assert [set(one) for one in names] == [{f"{kind.PLURAL}.{GROUP}" for kind in KINDS.values()}]
    held = {kind.PLURAL for kind in KINDS.values() if kind.HELD}
    assert [found[0] for name, found in rules.items() if name.endswith("-release")] == [held]
    for path in (ROOT / "charts/millstream/templates/hooks").glob(
        "*.yaml"
    ):  # so a kind appears elsewhere only by its name
        assert not [kind.PLURAL for kind in KINDS.values() if kind.PLURAL in path.read_text()]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("clusters.enabled=true", "additional properties 'clusters' not allowed"),
        ("cluster.replicas=3", "3 brokers need ZooKeeper: set cluster.zookeeper.replicas=3"),
        ("cluster.zookeeper.replicas=2", "value must be one of 1, 3"),
        ("images.pullPolicy=Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("cluster.storage.size=big", "does not match pattern"),
        ("monitoring.monitors=maybe", "value must be one of 'Auto', true, false"),
        ("cluster.name=Default", "does not match pattern"),
        ("operator.watchNamespaces={elsewhere}", "is not in operator.watchNamespaces"),
    ],
)
def test_bad_values(setting: str, words: str) -> None:
    with pytest.raises(CommandFailed, match=re.escape(words)):
        render(setting)


MONITORS = ["ServiceMonitor", "PodMonitor", "PodMonitor"]


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ((), []),
        (("monitoring.monitors=true",), MONITORS),
        (("monitoring.rules=true",), ["PrometheusRule"]),
        (("monitoring.monitors=true", "monitoring.rules=false"), MONITORS),
    ],
)
def test_monitors_and_rules_are_made_where_they_are_wanted(
    settings: tuple[str, ...], kinds: list[str]
) -> None:
    found = [one["kind"] for one in render(*settings) if one["apiVersion"] == "monitoring.coreos.com/v1"]
    assert sorted(found) == sorted(kinds)


def test_monitors_and_rules_are_made_where_kubernetes_knows_them() -> None:
    kinds = [
        f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PrometheusRule")
    ]
    arguments = ("template", "r", str(CHART), "--kube-version", "1.34", *kinds)
    documents = yaml.safe_load_all(run(require("helm"), *arguments))
    found = [one["kind"] for one in documents if one and one["apiVersion"] == "monitoring.coreos.com/v1"]
    assert sorted(found) == sorted([*MONITORS, "PrometheusRule"])


def test_monitors_find_the_pods_that_the_operator_makes() -> None:
    documents = render("monitoring.monitors=true", "operator.watchNamespaces={ms,flights}")
    monitors = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "PodMonitor"}
    cluster = decode(of_kind(documents, "Cluster"))
    assert isinstance(cluster, Cluster)
    mirror = decode(
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "MirrorMaker",
            "metadata": {"name": "m", "namespace": "ms"},
            "spec": {
                "sources": [{"name": "a", "bootstrap": "b:1"}],
                "target": {"bootstrap": "c:1"},
                "topics": {"include": [".*"]},
            },
        }
    )
    assert isinstance(mirror, MirrorMaker)
    pods = {
        "millstream-operator-brokers": (owned.labels(cluster), "cluster"),
        "millstream-operator-mirrors": (mirrors.labels(mirror), "mirror"),
    }
    assert monitors.keys() == pods.keys()
    for name, (labels, own) in pods.items():
        assert monitors[name]["selector"]["matchLabels"].items() <= labels.items()
        assert monitors[name]["namespaceSelector"] == {"matchNames": ["ms", "flights"]}
        (endpoint,) = monitors[name]["podMetricsEndpoints"]
        assert endpoint["relabelings"][0]["targetLabel"] == own
    zookeeper = owned.labels(cluster, "zookeeper")
    assert not any(one["selector"]["matchLabels"].items() <= zookeeper.items() for one in monitors.values())
    service, monitor = of_kind(documents, "Service"), of_kind(documents, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    container = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert service["spec"]["ports"][0]["port"] == ports["metrics"]


def test_rules_and_dashboards_are_shipped_whole() -> None:
    documents = render(
        "monitoring.rules=true", "monitoring.dashboards=true", "monitoring.runbooks=https://example.org/r"
    )
    metric = "(millstream_operator_leading"
    rules = (CHART / "rules/millstream.yaml").read_text().replace("docs/runbooks.md", "https://example.org/r")
    groups = yaml.safe_load(rules.replace(f"{metric})", f'{metric}{{lease="ms/millstream-operator"}})'))
    assert of_kind(documents, "PrometheusRule")["spec"] == groups
    labelled = [
        d["data"]
        for d in documents
        if d["kind"] == "ConfigMap" and "grafana_dashboard" in d["metadata"]["labels"]
    ]
    files = {path.name: path.read_text() for path in (CHART / "dashboards").glob("*.json")}
    assert len(files) == 6
    assert {name: text for data in labelled for name, text in data.items()} == files
    assert not any("grafana_dashboard" in d["metadata"].get("labels", {}) for d in render())
