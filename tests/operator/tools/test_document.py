"""Documents and code agree about the resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from millstream_harness.loads import allowed_conf
from millstream_operator.models.pods import ALLOWED_ENV
from millstream_operator.tools.document import pages
from millstream_operator.validation.admission import decode

ROOT = Path(__file__).resolve().parents[3]


EXAMPLES = ROOT / "examples/resources"
PAGES = pages(EXAMPLES)
KINDS = {
    crd["spec"]["names"]["singular"]: crd
    for crd in (yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml"))
}


def test_committed_pages_are_current() -> None:
    committed = [ROOT / "docs/resources.md", *(ROOT / "docs/resources").glob("*.md")]
    assert {str(path.relative_to(ROOT / "docs")): path.read_text() for path in committed} == PAGES, (
        "make definitions"
    )


def fields(schema: Any, path: str) -> Iterator[str]:
    """The path of each field, without those that all templates share."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        if name != "template" or "default" not in field:
            inner = field["items"] if field.get("type") == "array" else field
            yield from fields(inner, f"{path}.{name}")


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_has_an_anchor(kind: str) -> None:
    schema = KINDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    expected = [path for part in ("spec", "status") for path in fields(schema[part], part)]
    page = PAGES[f"resources/{kind}.md"]
    assert sorted(re.findall(r'<a id="(.*?)"></a>', page)) == sorted(expected)
    assert len(expected) == len(set(expected)) > 10


@pytest.mark.parametrize("page", PAGES)
def test_sections_have_anchors_of_their_own(page: str) -> None:
    """Links within a page lead to its sections or fields, and no two sections share an anchor."""
    text = PAGES[page]
    sections = [
        re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall("^#+ (.*)$", text, re.M)
    ]
    assert len(sections) == len(set(sections))
    assert set(re.findall(r"\]\(#(.*?)\)", text)) <= set(sections)


@pytest.mark.parametrize("kind", KINDS)
def test_page_begins_with_an_example_that_the_api_server_accepts(kind: str) -> None:
    """Beside the schema, `decode` checks the rules of the admission webhook."""
    text = (EXAMPLES / f"{kind}.yaml").read_text()
    before, fence, rest = PAGES[f"resources/{kind}.md"].partition("```yaml\n")
    assert fence
    assert "|" not in before
    assert rest.startswith(text)
    manifest = yaml.safe_load(text)
    crd = KINDS[kind]
    assert manifest["kind"] == crd["spec"]["names"]["kind"]
    decode(manifest)
    schema = closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    jsonschema.Draft202012Validator(schema).validate(manifest["spec"])


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server drops them and kubectl warns."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        found.pop("additionalProperties", None)
    return found


def test_values_of_the_example_stand_beside_their_fields() -> None:
    (row,) = re.findall(r'^\| <a id="spec.config"></a>.*$', PAGES["resources/topic.md"], re.M)
    assert "Example: `{retention.ms: '604800000', min.insync.replicas: '2'}`." in row
    (row,) = re.findall(
        r'^\| <a id="spec.listeners.advertisedHost"></a>.*$', PAGES["resources/cluster.md"], re.M
    )
    assert row.endswith("Example: `kafka-{broker}.shop.example`. |")


def test_the_page_on_security_lists_the_variables_that_sparks_pods_may_have() -> None:
    page = (ROOT / "docs/security.md").read_text()
    listed = page.partition("so no variable may load code there: loads accept")[2].partition(" only.")[0]
    assert tuple(re.findall("`(.*?)`", listed)) == ALLOWED_ENV


def test_the_page_on_security_lists_the_keys_that_spark_may_have() -> None:
    page = (ROOT / "docs/security.md").read_text()
    listed = page.partition("stands for all keys with that prefix:")[2].partition("\n- ")[0]
    assert tuple(re.findall("`(.*?)`", listed)) == allowed_conf()
