"""The chart's rights on a real API server: they allow the operator its work in the watched namespaces and no more, and
Spark's driver its executors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config
from msgspec.structs import replace

from millstream_harness.kube import CommandFailed, Namespace, run, until
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_harness.tools import require
from millstream_operator.kubernetes.client import Kube, KubeError
from millstream_operator.local.clusters import command
from millstream_operator.models import BatchLoad, BatchLoadStatus, Cluster, MirrorMaker, Run, User, decode_as
from millstream_operator.models.cluster import SecuredZooKeeper
from millstream_operator.reconcile.cluster.platform import with_login
from millstream_operator.reconcile.common.objects import ensure
from millstream_operator.reconcile.load.cleanup import clean
from millstream_operator.resources import cluster as cluster_objects
from millstream_operator.resources import load as load_objects
from millstream_operator.resources import mirror as mirror_objects
from millstream_operator.resources import platform as platform_objects
from millstream_operator.resources import user as user_objects
from millstream_operator.resources import zookeeper as zookeeper_objects
from millstream_operator.resources import zookeeper_login
from millstream_operator.resources.images import Images, SparkRole
from millstream_operator.resources.load_job import job
from millstream_operator.resources.network_policy import network_policies
from millstream_operator.resources.pod_access import PodAccess

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[3]
RELEASE = "here"
OPERATOR = f"{RELEASE}-millstream-operator"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding")
POLICIES = "admissionregistration.k8s.io/v1"


def rendered(namespace: Namespace) -> list[dict[str, Any]]:
    """The chart for a separate operator that watches this namespace."""
    settings = f"cluster.enabled=false,operator.watchNamespaces={{{namespace.name}}}"
    arguments = ["-n", namespace.name, "--kube-version", "1.34", "--set", settings, "--no-hooks"]
    arguments += ["--api-versions", f"{POLICIES}/ValidatingAdmissionPolicy"]
    text = run(require("helm"), "template", RELEASE, str(ROOT / "charts/millstream"), *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def apply_all(namespace: Namespace, documents: Sequence[dict[str, Any]]) -> None:
    namespace.apply({"apiVersion": "v1", "kind": "List", "items": documents})


@pytest.fixture(scope="module")
def watched(module_namespace: Namespace) -> Namespace:
    """A namespace that a separate operator watches, with the chart's rights there."""
    apply_all(module_namespace, [one for one in rendered(module_namespace) if one["kind"] in RIGHTS])
    return module_namespace


@pytest.fixture(scope="module")
def policed(new_module_namespace: Callable[[], Namespace]) -> Iterator[Namespace]:
    """Another one, with the chart's admission policies in force."""
    if "validatingadmissionpolicies" not in run("kubectl", "get", "--raw", f"/apis/{POLICIES}"):
        pytest.skip("a Kubernetes without admission policies")
    namespace = new_module_namespace()
    documents = rendered(namespace)
    policies = [one for one in documents if one["apiVersion"] == POLICIES]
    assert len(policies) == 4
    rights = [one for one in documents if one["kind"] in RIGHTS]
    rights.append(load_objects.service_account(namespace.name))
    rights.append(load_objects.role_binding(namespace.name, spark_role(namespace)))
    try:
        apply_all(namespace, [*rights, *policies])
        until("the operator's policy", lambda: refused(namespace, OPERATOR, config_map("mine", {})))
        until("the drivers' policy", lambda: refused(namespace, load_objects.SERVICE_ACCOUNT, a_pod({})))
        yield namespace
    finally:
        for kind in {one["kind"] for one in policies}:
            names = [one["metadata"]["name"] for one in policies if one["kind"] == kind]
            run("kubectl", "delete", kind, *names, "--ignore-not-found")


def as_account(namespace: Namespace, account: str) -> str:
    return f"--as=system:serviceaccount:{namespace.name}:{account}"


def who(namespace: Namespace, account: str) -> tuple[str, ...]:
    """Options of kubectl to act as a service account, or by a kubeconfig."""
    return ("--kubeconfig", account) if "/" in account else (as_account(namespace, account),)


def refused(namespace: Namespace, account: str, manifest: dict[str, Any]) -> str:
    """The error if an admission policy denies the account to create this object; "" if none does."""
    arguments = ("create", "--dry-run=server", "-f", "-", *who(namespace, account))
    try:
        namespace.kubectl(*arguments, stdin=json.dumps(manifest).encode())
    except CommandFailed as error:
        return str(error) if "denied request" in str(error) else ""
    return ""


def config_map(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


def a_pod(labels: dict[str, str], spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    context = {"allowPrivilegeEscalation": False}
    one = {"name": "c", "image": "nowhere/x", "securityContext": context, **container}
    metadata = {"name": "p", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [one], **(spec or {})},
    }


def may(namespace: Namespace, account: str, verb: str, what: str, where: str) -> bool:
    try:
        asked = ("kubectl", "auth", "can-i", verb, what, "-n", where)
        return run(*asked, as_account(namespace, account)).strip() == "yes"
    except CommandFailed:
        return False


def token(namespace: Namespace, account: str, *bound: str) -> str:
    return namespace.kubectl("create", "token", account, *bound).strip()


def kubeconfig(file: Path, token: str) -> str:
    """A kubeconfig with this token."""
    admin = json.loads(run("kubectl", "config", "view", "--raw", "--minify", "-o", "json"))
    admin["users"][0]["user"] = {"token": token}
    file.write_text(json.dumps(admin))
    return str(file)


def a_driver(namespace: Namespace, name: str) -> tuple[str, str]:
    """Create a pod with the drivers' service account; return its uid and the token that a kubelet would give it."""
    pod = a_pod({}, {"serviceAccountName": load_objects.SERVICE_ACCOUNT})
    namespace.apply({**pod, "metadata": {"name": name}})
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
    return namespace.get("pod", name)["metadata"]["uid"], token(
        namespace, load_objects.SERVICE_ACCOUNT, *bound
    )


def with_rights_of_the_operator(namespace: Namespace, folder: Path) -> Kube:
    file = kubeconfig(folder / "kubeconfig", token(namespace, OPERATOR))
    configuration = Configuration()
    load_kube_config(config_file=file, client_configuration=configuration)  # type: ignore[no-untyped-call]
    return Kube(configuration)


@pytest.fixture(scope="module")
def operator(watched: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Kube:
    """The API server, with the operator's rights."""
    return with_rights_of_the_operator(watched, tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="module")
def policed_operator(policed: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Kube:
    """The same where the policies are in force."""
    return with_rights_of_the_operator(policed, tmp_path_factory.mktemp("operator"))


def spark_role(namespace: Namespace) -> SparkRole:
    return SparkRole("Role", f"{namespace.name}:{OPERATOR}-spark")


def stored(namespace: Namespace, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name}
    namespace.apply(
        {"apiVersion": "millstream.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    )
    return namespace.get(f"{kind.lower()}s.millstream.dev", name)


TLS = {"caCertificates": [{"secretKeyRef": {"name": "west-ca", "key": "ca.crt"}}]}
SASL = {
    "mechanism": "SCRAM-SHA-512",
    "username": {"value": "mirror"},
    "password": {"secretKeyRef": {"name": "west-login", "key": "password"}},
}


def test_the_operator_can_do_its_work(policed: Namespace, policed_operator: Kube) -> None:
    watched, operator = policed, policed_operator
    cluster = decode_as(Cluster, stored(watched, "Cluster", "default", {}))
    user = decode_as(User, stored(watched, "User", "app", {"clusterRef": {"name": "default"}}))
    endpoint = mirror_objects.Endpoint("west", "west:9092")
    mirror = decode_as(
        MirrorMaker,
        stored(
            watched,
            "MirrorMaker",
            "m",
            {
                "sources": [{"name": "west", "bootstrap": "west:9092", "tls": TLS, "sasl": SASL}],
                "target": {"clusterRef": {"name": "default"}},
                "topics": {"include": [".*"]},
            },
        ),
    )
    file = mirror_objects.mirror_file(mirror, [endpoint], endpoint)
    ensemble = SecuredZooKeeper(replicas=1, login="a", logs_in=True)
    closed = replace(cluster, spec=replace(with_login(cluster.spec), zookeeper=ensemble))
    made = [
        cluster_objects.brokers_service(cluster),
        cluster_objects.config_map(cluster, 1, {}, None),
        *network_policies(cluster, watched.name),
        cluster_objects.stateful_set(cluster, image="broker", pull_policy="Never"),
        mirror_objects.config_map(mirror, file),
        mirror_objects.deployment(mirror, file, Images()),
        load_objects.service_account(watched.name),
        load_objects.role_binding(watched.name, spark_role(watched)),
        user_objects.secret(user, "open sesame", ""),
        platform_objects.secret(cluster, platform_objects.PlatformLogin("open sesame", b"salt")),
        *zookeeper_login.secrets(cluster, "open sesame"),
        *zookeeper_objects.objects(closed, image="zookeeper", pull_policy="Never"),
        cluster_objects.stateful_set(closed, image="broker", pull_policy="Never"),
    ]
    for manifest in made:
        ensure(operator, manifest)  # new objects
        ensure(operator, {**manifest, "metadata": {**manifest["metadata"], "annotations": {"a": "b"}}})
    workers = watched.get("deployment", mirror_objects.object_name(mirror))["metadata"]
    assert operator.delete("apps/v1", "Deployment", watched.name, workers["name"], uid=workers["uid"])


def test_the_operator_can_run_a_load_and_clean_up_after_it(
    policed: Namespace, policed_operator: Kube
) -> None:
    operator = policed_operator
    spec = {
        "clusterRef": {"name": "default"},
        "topics": ["t"],
        "value": {"format": "Binary"},
        "output": {
            "format": "Iceberg",
            "path": "s3a://bucket/t",
            "table": "lake.t",
            "catalog": {"type": "JDBC", "uri": "jdbc:postgresql://db/lake", "credentialsSecret": "catalog"},
            "s3": {"credentialsSecret": "bucket"},
        },
    }
    load = decode_as(BatchLoad, stored(policed, "BatchLoad", "daily", spec))
    begun = BatchLoadStatus(last_run=Run(name="daily-0001-x", id="daily-0001-x", state="Pending"), offsets=())
    run_of = replace(load, status=begun)
    access = PodAccess("b:9090", has_login=True, has_tls=True)
    started = load_objects.with_files_of_access(job(run_of, Images()), run_of, access)
    for manifest in (load_objects.config_map(run_of, access, Images()), started):
        operator.create(manifest)
    services = services_on_kubernetes(operator)
    clean(services, load, begun)
    assert policed.get("job", "daily-0001-x")["metadata"]["name"] == "daily-0001-x"
    pod = until("a driver", lambda: policed.list("pod", "-l", "millstream.dev/run=daily-0001-x"))[0]
    drawn = {
        one["name"]
        for one in pod["spec"]["containers"][0]["env"]
        if "secretKeyRef" in one.get("valueFrom", {})
    }
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "CATALOG_USER", "CATALOG_PASSWORD"} <= drawn
    # Without a node there is no log; that is no refusal.
    assert operator.log(policed.name, pod["metadata"]["name"], "driver", 20) == []
    clean(services, load, BatchLoadStatus())
    own = ("-l", "millstream.dev/batch-load=daily")
    until("what the run owned is gone", lambda: not policed.list("job,configmap,pod", *own))


def test_the_operator_can_bind_no_other_role_and_nobody_else(watched: Namespace, operator: Kube) -> None:
    binding = load_objects.role_binding(watched.name, spark_role(watched))
    for role in (SparkRole("ClusterRole", "cluster-admin"), SparkRole("ClusterRole", "view")):
        with pytest.raises(KubeError) as error:
            operator.apply(load_objects.role_binding(watched.name, role))
        assert error.value.status == 403
        with pytest.raises(KubeError) as error:  # nor under the allowed name
            operator.apply(
                {**binding, "roleRef": {**binding["roleRef"], "kind": role.kind, "name": role.name}}
            )
        assert error.value.status == 403
    account = load_objects.service_account(watched.name)
    with pytest.raises(KubeError) as error:
        operator.apply({**account, "metadata": {**account["metadata"], "name": "other"}})
    assert error.value.status == 403


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("patch", "configmaps"),
        ("delete", "deployments.apps"),
        ("delete", "pods"),
        ("list", "clusters.millstream.dev"),
    ],
)
def test_rights_end_with_the_watched_namespace(watched: Namespace, verb: str, what: str) -> None:
    assert may(watched, OPERATOR, verb, what, watched.name)
    assert not may(watched, OPERATOR, verb, what, "kube-system")
    assert not may(watched, OPERATOR, verb, what, "default")


OURS = {"app.kubernetes.io/managed-by": "millstream-operator"}
PROJECTED = {"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}
ESCALATING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "privileged": ({}, {"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}}),
    "no security context": ({}, {"securityContext": {}}),
    "namespaces of the node": ({"hostPID": True}, {}),
    "network of the node": ({"hostNetwork": True}, {}),
    "volume of the node": ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, {}),
    "secret volume": ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, {}),
    "projected secret": ({"volumes": [PROJECTED]}, {}),
    "account": ({"serviceAccountName": "admin"}, {}),
}


@pytest.fixture(scope="module")
def foreign(policed: Namespace) -> Namespace:
    """A namespace with another user's ConfigMap, pod and service account."""
    admin = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "admin"}}
    apply_all(policed, [config_map("theirs", {}), a_pod({}), admin])
    return policed


def test_policies_bound_the_operator(foreign: Namespace, policed_operator: Kube) -> None:
    operator = policed_operator
    with pytest.raises(KubeError, match="the operator writes only what is labelled"):
        operator.apply(
            {
                **config_map("theirs", OURS),
                "metadata": {**config_map("theirs", OURS)["metadata"], "namespace": foreign.name},
            }
        )
    with pytest.raises(KubeError, match="the operator writes only what is labelled"):
        operator.delete("v1", "Pod", foreign.name, "p", uid=foreign.get("pod", "p")["metadata"]["uid"])
    assert refused(foreign, OPERATOR, config_map("mine", OURS)) == ""

    def deployment(pod: dict[str, Any]) -> dict[str, Any]:
        labels = {"app": "x"}
        template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d", "labels": OURS},
            "spec": spec,
        }

    assert refused(foreign, OPERATOR, deployment(a_pod({}))) == ""
    workers = deployment(a_pod({}, {"volumes": [PROJECTED]}))
    workers["metadata"]["labels"] = {**OURS, "app.kubernetes.io/component": "mirror"}
    assert refused(foreign, OPERATOR, workers) == ""
    account = {"serviceAccountToken": {"path": "token"}}
    workers["spec"]["template"]["spec"]["volumes"] = [{"name": "v", "projected": {"sources": [account]}}]
    assert refused(foreign, OPERATOR, workers)
    for name, is_allowed in (("d-tls", True), ("other-tls", False)):
        brokers = deployment(a_pod({}, {"volumes": [{"name": "run", "secret": {"secretName": name}}]}))
        brokers["kind"] = "StatefulSet"
        brokers["spec"]["serviceName"] = "d"
        brokers["metadata"]["labels"] = {**OURS, "app.kubernetes.io/component": "broker"}
        assert (refused(foreign, OPERATOR, brokers) == "") == is_allowed, name
    secret = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
    whole = {"envFrom": [{"secretRef": {"name": "s"}}]}
    for what, (spec, more) in {**ESCALATING, "variable": ({}, secret), "variables": ({}, whole)}.items():
        assert refused(foreign, OPERATOR, deployment(a_pod({}, spec, **more))), what


def test_policies_bound_a_driver(foreign: Namespace, tmp_path: Path) -> None:
    uid, its_token = a_driver(foreign, "driver")
    driver = kubeconfig(tmp_path / "driver", its_token)
    neighbour = kubeconfig(tmp_path / "neighbour", a_driver(foreign, "neighbour")[1])
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "driver", "uid": uid}
    labels = {"spark-role": "executor", "millstream.dev/batch-load": "daily"}

    def executor(spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        metadata = {"name": "e", "labels": labels, "ownerReferences": [owner]}
        return {**a_pod(labels, spec, **more), "metadata": metadata}

    assert refused(foreign, driver, executor()) == ""
    own = [{"secret": {"name": f"daily-load-{name}"}} for name in ("user", "trust")]
    assert (
        refused(foreign, driver, executor({"volumes": [{"name": "v", "projected": {"sources": own}}]})) == ""
    )
    for what, (spec, more) in ESCALATING.items():
        assert refused(foreign, driver, executor(spec, **more)), what
    # Another driver's executors are not its own, nor are pods without a driver.
    theirs = "a driver makes and deletes only its own executors"
    assert theirs in refused(foreign, neighbour, executor())
    assert theirs in refused(foreign, driver, {**executor(), "metadata": {"name": "e", "labels": labels}})
    foreign.apply(executor())
    for arguments in (("e",), ("--all",), ("-l", "spark-role=executor")):
        with pytest.raises(CommandFailed, match="a driver makes and deletes only"):
            foreign.kubectl("delete", "pod", *arguments, "--wait=false", "--kubeconfig", neighbour)
    with pytest.raises(CommandFailed, match="a driver makes and deletes only the executors"):
        foreign.kubectl("delete", "pod", "p", "--wait=false", "--kubeconfig", driver)
    assert "deletionTimestamp" not in foreign.get("pod", "p")["metadata"]
    assert "deletionTimestamp" not in foreign.get("pod", "e")["metadata"]
    foreign.kubectl("delete", "pod", "-l", "spark-role=executor", "--wait=false", "--kubeconfig", driver)


@pytest.mark.timeout(700)
def test_a_driver_runs_its_executors_with_rights_on_pods_only(policed: Namespace, tmp_path: Path) -> None:
    """Spark itself is the driver: it creates its executors, and removes them at its end."""
    require("java")
    watched = policed
    account = load_objects.SERVICE_ACCOUNT
    for what in ("persistentvolumeclaims", "configmaps", "services", "secrets"):
        for verb in ("get", "create", "delete", "deletecollection"):
            assert not may(watched, account, verb, what, watched.name)
    load = decode_as(
        BatchLoad,
        stored(
            watched,
            "BatchLoad",
            "nightly",
            {
                "clusterRef": {"name": "default"},
                "topics": ["t"],
                "value": {"format": "Binary"},
                "output": {"path": "s3a://bucket/t"},
            },
        ),
    )
    load = replace(load, status=BatchLoadStatus(last_run=Run(name="nightly-0001", state="Pending")))
    uid, its_token = a_driver(watched, "spark")
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    change = json.dumps(ready)
    watched.kubectl("patch", "pod", "spark", "--subresource=status", "--type=merge", "--patch", change)
    (tmp_path / "token").write_text(its_token)
    (tmp_path / "executor.yaml").write_text(yaml.safe_dump(load_objects.executor_template(load, Images())))
    (tmp_path / "app.py").write_text(
        "import pathlib, sys, time\n"
        "from pyspark.sql import SparkSession\n"
        "session = SparkSession.builder.getOrCreate()\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n"
        "    time.sleep(0.2)\n"
        "session.stop()\n"
    )
    server = run("kubectl", "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
    conf = {
        **load_objects.spark_conf(load),
        "spark.kubernetes.namespace": watched.name,
        "spark.kubernetes.driver.pod.name": "spark",
        "spark.kubernetes.authenticate.oauthTokenFile": str(tmp_path / "token"),
        "spark.kubernetes.trust.certificates": "true",
        "spark.kubernetes.container.image": "nowhere/spark",
        "spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.yaml"),
        "spark.kubernetes.executor.podTemplateContainerName": load_objects.EXECUTOR_CONTAINER,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.instances": "2",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
    }
    arguments = [command("spark-submit"), "--master", f"k8s://{server}"]
    for key, value in conf.items():
        arguments += ["--conf", f"{key}={value}"]
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "KUBECONFIG": "/nowhere",
        # spark-submit looks for both on the PATH, which may have others
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("w") as out:
        driver = subprocess.Popen(
            [*arguments, str(tmp_path / "app.py"), str(tmp_path / "end")],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        until("executors", lambda: len(executors(watched, uid)) == 2, timeout=300)
        (tmp_path / "end").touch()
        driver.wait(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, log.read_text()
    assert "forbidden" not in log.read_text()
    until(
        "no executors", lambda: all("deletionTimestamp" in one["metadata"] for one in executors(watched, uid))
    )


def executors(namespace: Namespace, driver: str) -> list[dict[str, Any]]:
    """Executors of the driver with this uid; without a kubelet, deleted ones stay."""
    pods = namespace.list("pod", "-l", "spark-role=executor")
    return [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == driver]
