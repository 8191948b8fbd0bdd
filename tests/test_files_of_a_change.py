"""In how many files a change lies: an API of the broker, and a field of a resource.

Four are the aim. An API is its messages, its handler, a test and a generated page. A field is its line in the
definition, its line in the model, its behaviour and a test. What needs more is listed here by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROTOCOL = ROOT / "kafka-protocol/src/millstream_kafka/protocol"
BROKER = ROOT / "broker-image/src/millstream_broker"
OPERATOR = ROOT / "operator/src/millstream_operator"
MOST = 2
"""Files of the package itself, beside a test and what is described or generated."""

SENT_BY_BROKERS = {
    *("add_partitions_to_txn", "controlled_shutdown", "fetch", "list_offsets", "sasl_authenticate"),
    *("sasl_handshake", "stop_replica", "update_metadata", "write_txn_markers"),
}
HOT_OR_SHARED = {"metadata", "mirror_append", "produce"}
"""The broker encodes Metadata once for all clients, and has shorter paths for the requests that carry records."""

IN_MANY_PLANS = {
    *("clusterRef", "deletionPolicy", "groupId", "requestId", "topicName", "userName"),
    *("allowPlaintext", "allowedNamespaces", "className", "networkPolicy", "topologyKey"),
    *("replicationFactor", "startAt"),
    *(
        "minRecords",
        "partitionBy",
        "previousValidSeconds",
        "secretKeyRef",
        "secretName",
        "startingDeadlineSeconds",
        "timeColumn",
        "timeZone",
    ),
    *("timeoutSeconds", "ttlSecondsAfterFinished", "valueFrom", "volumeClaimName"),
}
"""What a resource is or belongs to, what Kubernetes and a laptop do differently, and what several plans decide by."""


def sources(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob("*.py"))}


def handled() -> list[str]:
    """Modules with a handler, each named as the module of its messages."""
    return sorted(path.stem for path in (BROKER / "api").glob("*.py") if "@handler(" in path.read_text())


def test_most_apis_are_their_messages_and_a_handler() -> None:
    texts = sources(BROKER) | sources(PROTOCOL)
    wide = set()
    for api in handled():
        imports = re.compile(
            rf"millstream_kafka\.protocol(?:\.{api}\b| import (?:\([^)]*)?[^\n(]*\b{api}\b)|^API = .*\b{api}\b",
            re.MULTILINE,
        )
        files = {path for path, text in texts.items() if imports.search(text)}
        assert BROKER / "api" / f"{api}.py" in files
        if len(files | {PROTOCOL / f"{api}.py"}) > MOST:
            wide.add(api)
    known = SENT_BY_BROKERS | HOT_OR_SHARED
    assert wide - known == set(), "behaviour outside the handler; if it must be, add it to the list"
    assert len(handled()) > 4 * len(known)


@pytest.mark.parametrize("api", handled())
def test_no_table_of_the_broker_lists_apis_by_name_or_key(api: str) -> None:
    """Importing a handler registers it."""
    head = re.search(r'^API = Api\(\s*(\d+),\s*"(\w+)"', (PROTOCOL / f"{api}.py").read_text(), re.MULTILINE)
    assert head
    listed = [path for path, text in sources(BROKER).items() if f'"{head[2]}"' in text]
    assert listed == []


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """Names of a schema's fields; those of pods' templates are generated from `models/pods.py`."""
    for name, field in schema.get("properties", {}).items():
        yield name
        if name != "template":
            yield from fields(field)
            yield from fields(field.get("items", {}))


def test_most_fields_are_a_line_in_the_model_and_their_behaviour() -> None:
    """Of fields whose name is found by a search: those of several words."""
    names = set()
    for path in (ROOT / "crds").glob("*.yaml"):
        (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
        names |= set(fields(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    texts, wide = sources(OPERATOR), set()
    several = {name for name in names if name != name.lower()}
    for name in several:
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)
        if sum(bool(re.search(rf"\b{snake}\b|[\"']{name}[\"']", text)) for text in texts.values()) > MOST:
            wide.add(name)
    assert wide - IN_MANY_PLANS == set(), (
        "behaviour in more than one place; if it must be, add it to the list"
    )
    assert len(several) > 2 * len(IN_MANY_PLANS)
