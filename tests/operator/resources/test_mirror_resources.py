"""The Deployment of a MirrorMaker's workers, their file, and their credentials."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from millstream_harness.mirror_maker import BOOTSTRAPS, a_mirror
from millstream_mirror.membership.ownership import Owner, owner_in_environment
from millstream_operator.reconcile.mirror import rules as mirror_rules
from millstream_operator.resources import mirror as resources
from millstream_operator.resources.images import Images
from millstream_operator.resources.volumes import UserIds

pytestmark = pytest.mark.process


def test_the_workers_file() -> None:
    mirror = a_mirror(naming="Prefixed")
    assert resources.mirror_file(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS)) == {
        "name": "west-to-east",
        "namespace": "prod",
        "sources": [{"name": "west", "bootstrap": "west-bootstrap.prod.svc:9092"}],
        "target": {"bootstrap": "east-bootstrap.prod.svc:9092"},
        "topics": {"include": ["orders.*"], "exclude": ["orders-test"]},
        "mode": "Aggregate",
        "naming": "Prefixed",
        "onGap": "SkipToEarliest",
        "http": ":9404",
    }
    following = a_mirror(groups={"include": [".*"], "exclude": ["test"]}, onGap="Stop")
    file = resources.mirror_file(following, *mirror_rules.endpoints_of(following, BOOTSTRAPS))
    assert (file["groups"], file["onGap"]) == ({"include": [".*"], "exclude": ["test"]}, "Stop")
    assert resources.specified(file)["groups"] == file["groups"]


def test_a_request_to_rejoin_reaches_the_workers() -> None:
    mirror = a_mirror(mode="Identity", rejoin={"requestId": "back-1"})
    file = resources.mirror_file(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS))
    assert file["rejoin"] == {"requestId": "back-1"} == resources.specified(file)["rejoin"]
    ordinary = a_mirror()
    assert "rejoin" not in resources.mirror_file(ordinary, *mirror_rules.endpoints_of(ordinary, BOOTSTRAPS))


def test_the_workers_are_a_deployment_of_restricted_pods_that_rolls_with_the_file() -> None:
    mirror = a_mirror(replicas=3)
    file = resources.mirror_file(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS))
    images = Images(broker="registry.example/broker:1", pull_policy="Always")
    deployment = resources.deployment(mirror, file, images)
    assert deployment["metadata"]["name"] == "west-to-east-mirror"
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == "u-west-to-east"
    assert deployment["spec"]["replicas"] == 3
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assigned = dataclasses.replace(images, user_ids=UserIds.ASSIGNED)
    context = resources.deployment(mirror, file, assigned)["spec"]["template"]["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/broker:1"
    assert container["command"] == ["millstream-mirror", "/etc/millstream/mirror.json"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    owner = Owner("2026-01-01T00:00:00Z", "u-west-to-east", "prod")
    assert owner_in_environment(environment, file["namespace"]) == owner
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert json.loads(resources.config_map(mirror, file)["data"]["mirror.json"]) == file
    other = resources.deployment(mirror, {**file, "naming": "Prefixed"}, images)["spec"]["template"]
    assert other["metadata"]["annotations"] != template["metadata"]["annotations"]


def key(name: str, of: str = "kafka") -> dict[str, Any]:
    return {"secretKeyRef": {"name": of, "key": name}}


SECURED: dict[str, Any] = {
    "sources": [
        {
            "name": "kafka",
            "bootstrap": "kafka:9093",
            "tls": {"caCertificates": [key("ca.crt")], "certificate": key("tls.crt"), "key": key("tls.key")},
        }
    ],
    "target": {
        "bootstrap": "other:9093",
        "tls": {"caCertificates": [key("ca.crt")], "verifyHostname": False},
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "username": {"value": "mirror"},
            "password": key("password", "login"),
        },
    },
}


def test_settings_to_copy_are_in_the_workers_file_if_not_all_are() -> None:
    patterns = {"include": [".*"], "exclude": ["a"]}
    for mirror, told in ((a_mirror(), None), (a_mirror(configs=patterns), patterns)):
        file = resources.mirror_file(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS))
        assert file.get("configs") == told
        assert resources.specified(file).get("configs") == told
    with pytest.raises(ValueError, match=r"include: '\(' is not a regular expression"):
        a_mirror(configs={"include": ["("]})


def test_limit_and_rack_of_a_source_are_in_the_workers_file() -> None:
    west = {"name": "west", "bootstrap": "a:1", "maxBytesPerSecond": 5000, "rack": "eu-1a"}
    mirror = a_mirror(sources=[west, {"name": "north", "bootstrap": "b:1"}], target={"bootstrap": "c:1"})
    file = resources.mirror_file(mirror, *mirror_rules.endpoints_of(mirror, {}))
    assert file["sources"] == [west, {"name": "north", "bootstrap": "b:1"}]


def test_credentials_are_files_and_never_in_the_workers_file() -> None:
    mirror = a_mirror(**SECURED)
    sources, target = mirror_rules.endpoints_of(mirror, {})
    file = resources.mirror_file(mirror, sources, target)

    def value(secret: str, name: str) -> dict[str, str]:
        return {
            "file": f"/run/millstream/secrets/{secret}/{name}",
            "from": f"key {name} of Secret {secret}",
        }

    assert file["sources"][0]["tls"] == {
        "caCertificates": [value("kafka", "ca.crt")],
        "certificate": value("kafka", "tls.crt"),
        "key": value("kafka", "tls.key"),
        "verifyHostname": True,
    }
    assert file["target"]["tls"] == {
        "caCertificates": [value("kafka", "ca.crt")],
        "verifyHostname": False,
    }
    assert file["target"]["sasl"] == {
        "mechanism": "SCRAM-SHA-512",
        "username": {"value": "mirror"},
        "password": value("login", "password"),
    }
    assert resources.specified(file)["sources"] == [{"name": "kafka", "bootstrap": "kafka:9093"}]
    pod = resources.deployment(mirror, file, Images())["spec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if "projected" in one)
    kafka = [{"key": name, "path": f"kafka/{name}"} for name in ("ca.crt", "tls.crt", "tls.key")]
    login = [{"key": "password", "path": "login/password"}]
    assert volume["projected"]["sources"] == [
        {"secret": {"name": "kafka", "items": kafka, "optional": True}},
        {"secret": {"name": "login", "items": login, "optional": True}},
    ]
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "run", "mountPath": "/run/millstream/secrets", "readOnly": True} in mounts
