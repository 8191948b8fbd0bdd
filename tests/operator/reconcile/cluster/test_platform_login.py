"""The operator's own login: how an open Cluster is closed, a new one is closed from its start, and another password."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from millstream_harness.cluster_looks import INTERNAL, SOON, East, answers, partition
from millstream_harness.in_memory import stored
from millstream_harness.manifests import resource
from millstream_operator.kafka.records import AdminError
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.resources.mirror import LOGS_IN
from millstream_operator.resources.workload import LOGIN

PASSWORDS = {"authentication": {"type": "ScramSha512"}}
TLS = {"tls": "Enabled"}
CLOSED = [{**INTERNAL, **PASSWORDS}]
BOOTSTRAP = "east-bootstrap.ns.svc:9091"
SECRET = "east-brokers-platform"
HEALTHY = answers(partition("a", 0, 0, 1, 2))


def config(east: East) -> dict[str, str]:
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def protocols(east: East) -> dict[str, str]:
    return dict(one.split(":") for one in config(east)["listener.security.protocol.map"].split(","))


def secret(east: East) -> dict[str, str]:
    data = east.kube.objects["Secret", SECRET]["data"]
    return {key: base64.b64decode(value).decode("latin-1") for key, value in data.items()}


def connects(east: East) -> tuple[str, bool]:
    """Where the operator connects, and whether it logs in."""
    found = east.memory.services.client_of(decode_as(Cluster, east.kube.objects["Cluster", "east"]))
    return found.bootstrap, found.security is not None


def roll(east: East, brokers: int = 3) -> None:
    """Replace all pods by such of the present template."""
    for broker in range(brokers):
        east.kube.objects.pop(("Pod", f"east-brokers-{broker}"), None)
    east.run(*[True] * brokers)


def open_cluster(**spec: Any) -> East:
    east = East(3, {"clusterId": "id"}, **spec)
    east.look()
    east.run(True, True, True)
    east.look(**HEALTHY)
    return east


def test_a_new_cluster_is_closed_from_its_first_broker_on() -> None:
    east = East(3, listeners=CLOSED)
    assert east.look() == SOON
    assert protocols(east) == {"INTERNAL": "SASL_PLAINTEXT", "REPLICATION-9091": "SASL_PLAINTEXT"}
    found = config(east)
    assert found["listener.name.replication-9091.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    where = found["listener.name.replication-9091.sasl.scram.credentials.location"]
    pod = east.kube.objects["StatefulSet", "east-brokers"]["spec"]["template"]["spec"]
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "conf")
    (volume,) = (one for one in pod["volumes"] if one["name"] == "conf")
    assert where == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
    assert volume["secret"]["secretName"] == SECRET
    assert [item["key"] for item in volume["secret"]["items"]] == ["credentials"], "brokers need no password"
    assert east.status["platform"] == {"bootstrap": BOOTSTRAP, "secret": SECRET, "internal": "Closed"}
    assert connects(east) == (BOOTSTRAP, True)


def test_a_cluster_without_authentication_stays_as_it_was() -> None:
    east = open_cluster()
    assert protocols(east) == {"INTERNAL": "PLAINTEXT", "REPLICATION-9091": "PLAINTEXT"}
    assert ("Secret", SECRET) not in east.kube.objects
    assert "platform" not in east.status
    assert connects(east) == ("east-bootstrap.ns.svc:9092", False)


def test_the_internal_listener_is_closed_once_every_broker_has_the_operators_login() -> None:
    east = open_cluster()
    east.change(3, listeners=CLOSED)
    east.look(**HEALTHY)
    assert protocols(east) == {"INTERNAL": "PLAINTEXT", "REPLICATION-9091": "SASL_PLAINTEXT"}
    assert connects(east) == ("east-bootstrap.ns.svc:9092", False)
    (_, reason, words) = east.says("RollingUpdate") or ("", "", "")
    assert (reason, words) == ("Restarting", "restarting east-brokers-1 (ConfigurationChanged); 3 to go")
    east.run(True, True, True)  # the operator has deleted one pod of the three
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    roll(east)
    east.look(**HEALTHY)
    assert protocols(east) == {"INTERNAL": "SASL_PLAINTEXT", "REPLICATION-9091": "SASL_PLAINTEXT"}
    assert connects(east) == (BOOTSTRAP, True)
    order = [(one["kind"], "platform" in one.get("status", {})) for one in east.kube.applied]
    assert order.index(("Cluster", True)) < order.index(("ConfigMap", False)), "the operator moves first"
    roll(east)
    east.look(**HEALTHY)
    assert east.says("RollingUpdate") is None
    assert east.status["platform"]["internal"] == "Closed"


def test_a_lost_status_opens_nothing() -> None:
    """Such as one restored from a backup."""
    east = open_cluster(listeners=CLOSED)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"
    east.kube.objects["Cluster", "east"]["status"] = {}
    east.look(**HEALTHY, cluster_id="id")
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"
    assert east.status["platform"]["internal"] == "Closed"
    assert "ConfigMap" not in east.touched


def test_a_listener_that_needs_no_login_any_more_is_opened_and_the_operator_keeps_its_own() -> None:
    east = open_cluster(listeners=CLOSED)
    east.change(3, listeners=[INTERNAL])
    east.look(**HEALTHY)
    assert protocols(east) == {"INTERNAL": "PLAINTEXT", "REPLICATION-9091": "SASL_PLAINTEXT"}
    assert east.status["platform"] == {"bootstrap": BOOTSTRAP, "secret": SECRET, "internal": "Open"}


LOAD = resource(
    "BatchLoad",
    "daily",
    clusterRef={"name": "east"},
    topics=["a"],
    value={"format": "Binary"},
    output={"path": "s3a://b/c", "format": "Delta"},
)
MIRROR = resource(
    "MirrorMaker",
    "copy",
    sources=[{"name": "west", "bootstrap": "west:9092"}],
    target={"clusterRef": {"name": "east"}},
    topics={"include": [".*"]},
)


def with_login_of_brokers(
    east: East, *resources: dict[str, Any], closing: dict[str, Any] = PASSWORDS
) -> None:
    """Every broker has the operator's login, and the Internal listener is to be closed."""
    for one in resources:
        east.memory.services.store.put(stored(one))
    east.change(3, listeners=[{**INTERNAL, **closing}])
    east.look(**HEALTHY)
    roll(east)
    east.look(**HEALTHY)


def run_of_load(*, login: bool = False, tls: bool = False, uid: str = "u-daily") -> dict[str, Any]:
    """The ConfigMap of a run."""
    file = {**({"login": {"folder": "/f"}} if login else {}), **({"tls": {"caFile": "/f/ca"}} if tls else {})}
    metadata = {"namespace": "ns", "name": "daily-0001", "ownerReferences": [{"uid": uid}]}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"run.json": json.dumps(file)}}


@pytest.mark.parametrize("login", [False, True], ids=["open", "login"])
def test_a_cluster_gets_tls_when_no_run_of_a_load_is_without_it(login: bool) -> None:
    east = open_cluster()
    east.kube.put(run_of_load(login=login))
    running = {**stored(LOAD), "status": {"lastRun": {"name": "daily-0001", "state": "Running"}}}
    with_login_of_brokers(east, running, closing=TLS)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    assert connects(east)[1], "the operator logs in"
    assert east.status["platform"]["internal"] == "Open"
    status, reason, words = east.says("Warning") or ("", "", "")
    assert (status, reason) == ("True", "ListenerOpen")
    assert "is still open, because BatchLoad ns/daily has a run that does not log in with TLS" in words
    east.kube.put(run_of_load(login=True, tls=True))
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "SSL"


def test_a_cluster_closes_when_no_run_of_a_load_is_without_a_login() -> None:
    east = open_cluster()
    east.kube.put(run_of_load())
    running = {**stored(LOAD), "status": {"lastRun": {"name": "daily-0001", "state": "Running"}}}
    with_login_of_brokers(east, running)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    status, reason, words = east.says("Warning") or ("", "", "")
    assert (status, reason) == ("True", "ListenerOpen")
    assert "is still open, because BatchLoad ns/daily has a run that does not log in" in words
    ended = {"lastRun": {"name": "daily-0001", "state": "Succeeded"}}
    east.memory.services.store.put({**running, "status": ended})
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"


def test_a_run_that_starts_while_the_cluster_begins_to_close_keeps_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It read the Cluster before its status said that pods log in, and wrote its file just then."""
    east = open_cluster()
    east.change(3, listeners=CLOSED)
    east.look(**HEALTHY)
    roll(east)
    apply = east.kube.apply

    def and_a_run_starts(manifest: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        if manifest["kind"] == "Cluster" and ("ConfigMap", "daily-0001") not in east.kube.objects:
            east.kube.put(run_of_load())
            running = {**stored(LOAD), "status": {"lastRun": {"name": "daily-0001", "state": "Pending"}}}
            east.memory.services.store.put(running)
        return apply(manifest, subresource)

    monkeypatch.setattr(east.kube, "apply", and_a_run_starts)
    east.look(**HEALTHY)
    assert ("ConfigMap", "daily-0001") in east.kube.objects
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    assert (east.status["platform"]["bootstrap"], east.status["platform"]["internal"]) == (BOOTSTRAP, "Open")
    assert "BatchLoad ns/daily has a run that does not log in" in (east.says("Warning") or ("",) * 3)[2]


def test_a_cluster_closes_no_listener_before_its_status_says_where_pods_connect() -> None:
    east = open_cluster()
    east.change(3, listeners=CLOSED)
    east.look(**HEALTHY)
    roll(east)
    east.kube.refused_writes["Cluster"] = KubeError(409, "Conflict", "another writer was faster")
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    del east.kube.refused_writes["Cluster"]
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    "run",
    [None, run_of_load(login=True), run_of_load(uid="u-other")],
    ids=["none", "with a login", "another's"],
)
def test_a_run_that_logs_in_or_has_not_started_keeps_no_cluster_open(run: dict[str, Any] | None) -> None:
    east = open_cluster()
    if run is not None:
        east.kube.put(run)
    running = {**stored(LOAD), "status": {"lastRun": {"name": "daily-0001", "state": "Pending"}}}
    with_login_of_brokers(east, running)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"


def workers(*, logs_in: str, uid: str = "u-copy", **status: int) -> dict[str, Any]:
    annotations = {LOGS_IN: logs_in} if logs_in else {}
    return {
        "kind": "Deployment",
        "metadata": {
            "namespace": "ns",
            "name": "copy-mirror",
            "generation": 2,
            "ownerReferences": [{"uid": uid}],
        },
        "spec": {"template": {"metadata": {"annotations": annotations}}},
        "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, **status},
    }


@pytest.mark.parametrize(
    "before",
    [
        workers(logs_in=""),
        workers(logs_in="ns/west"),
        workers(logs_in="ns/east,ns/west", updatedReplicas=1),
        workers(logs_in="ns/east", observedGeneration=1),
    ],
    ids=["no login", "a login elsewhere", "one of two", "not seen"],
)
def test_a_cluster_closes_when_no_worker_of_a_mirror_is_without_a_login(before: dict[str, Any]) -> None:
    east = open_cluster()
    east.kube.put(before)
    with_login_of_brokers(east, MIRROR)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    _, _, words = east.says("Warning") or ("", "", "")
    assert "internal is still open, because workers of MirrorMaker ns/copy do not log in yet" in words
    east.kube.put(workers(logs_in="ns/east"))
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"
    assert east.says("Warning") is None


@pytest.mark.parametrize("others", [None, workers(logs_in="", uid="u-other")], ids=["none", "another's"])
def test_a_mirror_without_workers_keeps_no_cluster_open(others: dict[str, Any] | None) -> None:
    east = open_cluster()
    if others is not None:
        east.kube.put(others)
    with_login_of_brokers(east, MIRROR)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"


GROUP = resource(
    "ConsumerGroup",
    "watch",
    clusterRef={"name": "east"},
    groupId="watch",
    topics=["a"],
    workload={"template": {"spec": {"containers": [{"name": "a", "image": "a"}]}}},
)


def consumers(*, login: bool, uid: str = "u-watch", **status: int) -> dict[str, Any]:
    found = workers(logs_in="", uid=uid, **status)
    found["metadata"]["name"] = "watch-consumers"
    found["spec"]["template"]["metadata"] = {"annotations": {LOGIN: "1"}} if login else {}
    return found


@pytest.mark.parametrize(
    "before",
    [
        consumers(login=False),
        consumers(login=True, updatedReplicas=1),
        consumers(login=True, observedGeneration=1),
    ],
    ids=["no login", "one of two", "not seen"],
)
def test_a_cluster_closes_when_no_consumer_of_a_workload_is_without_a_login(before: dict[str, Any]) -> None:
    east = open_cluster()
    east.kube.put(before)
    with_login_of_brokers(east, GROUP)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    _, _, words = east.says("Warning") or ("", "", "")
    assert "internal is still open, because consumers of ConsumerGroup ns/watch do not log in yet" in words
    east.kube.put(consumers(login=True))
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"
    assert east.says("Warning") is None


def test_a_cluster_gets_tls_when_consumers_of_workloads_have_its_authorities() -> None:
    east = open_cluster()
    east.kube.put(consumers(login=True))
    secret_of = {"namespace": "ns", "name": "watch-consumers-client"}
    east.kube.put({"kind": "Secret", "metadata": secret_of, "data": {"client.properties": ""}})
    with_login_of_brokers(east, GROUP, closing=TLS)
    assert protocols(east)["INTERNAL"] == "PLAINTEXT"
    words = (east.says("Warning") or ("", "", ""))[2]
    assert "consumers of ConsumerGroup ns/watch do not log in with TLS yet" in words
    east.kube.put({"kind": "Secret", "metadata": secret_of, "data": {"ca.crt": "Y2E="}})
    east.look(**HEALTHY)
    assert protocols(east)["INTERNAL"] == "SSL"


@pytest.mark.parametrize(
    "there",
    [
        None,
        consumers(login=False, uid="u-other"),
        {**consumers(login=False, replicas=0), "spec": {"replicas": 0, "template": {}}},
    ],
    ids=["none", "another's", "stopped"],
)
def test_a_group_without_consumers_keeps_no_cluster_open(there: dict[str, Any] | None) -> None:
    east = open_cluster()
    if there is not None:
        east.kube.put(there)
    with_login_of_brokers(east, GROUP)
    assert protocols(east)["INTERNAL"] == "SASL_PLAINTEXT"


def test_without_a_right_to_secrets_nothing_changes() -> None:
    east = open_cluster()
    before = dict(east.kube.objects["ConfigMap", "east-brokers"]["data"])
    east.kube.refused["Secret"] = KubeError(403, "Forbidden", "secrets is forbidden")
    east.change(3, listeners=CLOSED)
    assert east.look(**HEALTHY) == SOON
    assert east.kube.objects["ConfigMap", "east-brokers"]["data"] == before
    status, reason, words = east.says() or ("", "", "")
    assert (status, reason) == ("False", "SecretNotReadable")
    assert "set operator.users: true" in words


def test_a_malformed_secret_is_named_and_nothing_of_it() -> None:
    east = open_cluster(listeners=CLOSED)
    del east.kube.objects["Secret", SECRET]["data"]["salt"]
    east.look(**HEALTHY)
    assert east.says() == (
        "False",
        "SecretInvalid",
        f"Secret {SECRET} has no key salt: delete it, and a new one is generated",
    )


def test_a_password_is_generated_once() -> None:
    east = open_cluster(listeners=CLOSED)
    before = dict(east.kube.objects["Secret", SECRET]["data"])
    east.look(**HEALTHY)
    assert east.kube.objects["Secret", SECRET]["data"] == before


def test_another_password_is_used_once_every_broker_accepts_it() -> None:
    east = open_cluster(listeners=CLOSED)
    old = secret(east)["password"]
    east.change(3, listeners=CLOSED, rotate={"requestId": "spring"})
    assert east.look(**HEALTHY) == SOON
    begun = secret(east)
    assert begun["password"] == old
    assert begun["next"] not in ("", old)
    assert len(begun["credentials"].splitlines()) == 2
    for refused in ({"held": AdminError("a broker refuses it")}, {"brokers": AdminError("none answers")}):
        assert east.look(**{**HEALTHY, **refused}) == SOON
        assert secret(east) == begun
    east.look(**HEALTHY)
    turned = secret(east)
    assert (turned["password"], turned["previous"]) == (begun["next"], old)
    assert len(turned["credentials"].splitlines()) == 2, "logins that have begun succeed"
    east.look(**HEALTHY)
    assert len(secret(east)["credentials"].splitlines()) == 1
    assert {"next", "previous"}.isdisjoint(secret(east))
    after = secret(east)
    east.look(**HEALTHY)
    assert secret(east) == after, "once for each request"


def test_access_rules_have_the_operator_among_the_super_users_and_nobody_without_a_login() -> None:
    rules = {"authorization": {"type": "Simple", "superUsers": ["admin"]}}
    east = open_cluster(**rules)
    assert config(east)["super.users"] == "User:ANONYMOUS;User:admin"
    east.change(3, listeners=CLOSED, **rules)
    east.look(**HEALTHY)
    assert config(east)["super.users"] == "User:ANONYMOUS;User:admin;User:millstream-operator"
    roll(east)
    east.look(**HEALTHY)
    assert config(east)["super.users"] == "User:admin;User:millstream-operator"


def test_super_users_of_the_configuration_get_the_operator_too() -> None:
    authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    east = open_cluster(listeners=CLOSED, config=authorizer)
    assert config(east)["super.users"] == "User:millstream-operator"
    east = open_cluster(listeners=CLOSED, config={**authorizer, "super.users": "User:a;"})
    assert config(east)["super.users"] == "User:a;User:millstream-operator"
    assert "super.users" not in config(open_cluster(listeners=CLOSED))


def test_the_operator_may_reach_the_listener_for_brokers_where_it_logs_in() -> None:
    east = open_cluster(listeners=CLOSED)
    ports = {one["name"]: one["port"] for one in _service(east, "east-bootstrap")}
    assert ports == {"kafka": 9092, "platform": 9091}


def test_workers_with_a_login_may_reach_the_listener_for_brokers() -> None:
    def peers(east: East, port: int = 9091) -> list[dict[str, Any]]:
        east.look(**HEALTHY)
        rules = east.kube.objects["NetworkPolicy", "east-brokers"]["spec"]["ingress"]
        (rule,) = (one for one in rules if one["ports"][0]["port"] == port)
        found: list[dict[str, Any]] = rule["from"]
        return found

    names = {"key": "app.kubernetes.io/name", "operator": "In"}
    labels = {**names, "values": ["millstream-consumers", "millstream-load", "millstream-mirror"]}
    workers = {"podSelector": {"matchExpressions": [labels]}}
    policy = {"networkPolicy": {"enabled": True}}
    assert workers not in peers(open_cluster(**policy))
    assert workers in peers(open_cluster(listeners=CLOSED, **policy))
    elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team"]}
    found = peers(open_cluster(listeners=CLOSED, allowedNamespaces=["team"], **policy))
    assert {**workers, "namespaceSelector": {"matchExpressions": [elsewhere]}} in found
    found = peers(open_cluster(listeners=CLOSED, allowedNamespaces=["*"], **policy))
    assert {**workers, "namespaceSelector": {}} in found


def _service(east: East, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = east.kube.objects["Service", name]["spec"]["ports"]
    return found
