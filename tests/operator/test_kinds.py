"""One table of kinds: all other lists have exactly its kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_operator.handlers import CONTROLLERS
from millstream_operator.kubernetes.client import path_of
from millstream_operator.local import manifests
from millstream_operator.models import API_VERSION, GROUP, KINDS

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS: dict[str, Any] = {
    definition["spec"]["names"]["kind"]: definition
    for definition in (yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml"))
}


def test_every_kind_is_defined_watched_and_known_locally() -> None:
    assert DEFINITIONS.keys() == KINDS.keys()
    assert {name: one.kind for name, one in CONTROLLERS.items()} == KINDS
    assert tuple(KINDS) == manifests.KINDS


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_as_its_definition_says(name: str) -> None:
    kind, definition = KINDS[name], DEFINITIONS[name]["spec"]
    assert (name, definition["names"]["plural"], definition["group"]) == (kind.KIND, kind.PLURAL, GROUP)
    assert path_of(API_VERSION, name, "ns", "x") == f"/apis/{API_VERSION}/namespaces/ns/{kind.PLURAL}/x"
    spec = definition["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert kind.CLAIMS is None or kind.CLAIMS in spec
    assert ("deletionPolicy" in spec) == kind.HELD


def test_the_chart_gives_rights_to_every_kind() -> None:
    rights = (ROOT / "charts" / "millstream" / "templates" / "rbac.yaml").read_text()
    for kind in KINDS.values():
        assert kind.PLURAL in rights
        assert f"{kind.PLURAL}/status" in rights
