"""The configuration file: an error names the field, the value and what is allowed; nothing starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream_mirror.config.config import parse
from millstream_mirror.config.document import Naming
from millstream_mirror.config.fields import MirrorConfigError

pytestmark = pytest.mark.process

GOOD: dict[str, Any] = {
    "name": "west-to-east",
    "namespace": "flights",
    "sources": [{"name": "west", "bootstrap": "a:9092,b:9092"}],
    "target": {"bootstrap": "c:9092"},
    "topics": {"include": ["orders.*"], "exclude": ["orders-test"]},
    "mode": "Aggregate",
    "naming": "Prefixed",
    "http": "0.0.0.0:9404",
}


def test_valid_file_is_parsed() -> None:
    config = parse(json.dumps(GOOD))
    assert (config.naming, config.http_host, config.http_port) == (Naming.PREFIXED, "0.0.0.0", 9404)
    assert config.target_topic(config.sources[0], "orders") == "west.orders"
    assert config.group_of(config.sources[0]) == "millstream-mirror.west-to-east.west"
    assert [
        name for name in ("orders", "orders-eu", "my-orders", "orders-test") if config.includes(name)
    ] == [
        "orders",
        "orders-eu",
    ]


def test_unmatched_topics_are_patterns_without_topic() -> None:
    config = parse(json.dumps({**GOOD, "topics": {"include": ["ordrs", "orders", "a.*b"]}}))
    assert config.unmatched(["orders", "orders-eu", "ab"]) == ["ordrs"]
    assert config.unmatched([]) == ["ordrs", "orders", "a.*b"]


def test_unmatched_groups_are_patterns_without_group() -> None:
    config = parse(json.dumps({**GOOD, "groups": {"include": ["biling", "app-.*"]}}))
    assert config.unmatched_groups(["billing", "app-1"]) == ["biling"]
    assert config.unmatched_groups([]) == ["biling", "app-.*"]
    every = parse(json.dumps({**GOOD, "groups": {"include": [".*", ".+", "[a-z]+"]}}))
    assert every.unmatched_groups([]) == ["[a-z]+"], "the others match every name"


def test_rejoin_request_is_parsed() -> None:
    requested = {**GOOD, "mode": "Identity", "rejoin": {"requestId": "2026-11-25"}}
    assert parse(json.dumps(requested)).rejoin == "2026-11-25"
    assert parse(json.dumps(GOOD)).rejoin == ""


def test_defaults_exclude_internal_topics() -> None:
    config = parse(json.dumps({key: GOOD[key] for key in ("name", "sources", "target")}))
    assert config.naming is Naming.SAME
    assert config.includes("anything")
    assert not config.includes("__consumer_offsets")
    assert not config.includes_group("anything")


@pytest.mark.parametrize(("mode", "is_mirrored"), [("Aggregate", True), ("Identity", False)])
def test_set_aside_topics_are_no_replicas(mode: str, is_mirrored: bool) -> None:
    config = parse(json.dumps({**GOOD, "naming": "Same", "mode": mode}))
    assert config.includes("orders")
    assert config.includes("orders.set-aside") is is_mirrored


def test_groups_of_mirrors_are_never_selected() -> None:
    config = parse(json.dumps({**GOOD, "groups": {"include": [".*"], "exclude": ["test-.*"]}}))
    assert [config.includes_group(name) for name in ("app", "test-app", "millstream-mirror.a.b")] == [
        True,
        False,
        False,
    ]


def secured(**source: Any) -> dict[str, Any]:
    return {"sources": [{"name": "west", "bootstrap": "a:1", **source}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"rejoin": {"requestId": "1"}},
        "rejoin: with mode Aggregate topics of the target are no replicas: expected Identity",
    ),
    ({"mode": "Identity", "rejoin": {}}, "rejoin.requestId: missing"),
    (
        {"mode": "Identity", "rejoin": {"requestId": "a b"}},
        "rejoin.requestId: \"a b\" is not allowed: expected 1 to 63 letters, digits, '.', '_' or '-'",
    ),
    (
        secured(tls={"certificate": {"file": "/a"}}),
        "sources[0].tls: set both certificate and key, or neither",
    ),
    (
        secured(maxBytesPerSecond=100),
        "sources[0].maxBytesPerSecond: 100 is not allowed: expected 1024 or more",
    ),
    (
        secured(tls={"verifyHostname": "no"}),
        'sources[0].tls.verifyHostname: "no" is not allowed: expected true or false',
    ),
    (
        secured(sasl={"mechanism": "GSSAPI", "username": {"value": "a"}, "password": {"file": "/a"}}),
        'sources[0].sasl.mechanism: "GSSAPI" is not allowed: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512',
    ),
    (
        secured(sasl={"mechanism": "PLAIN", "username": {"value": "a"}, "password": "hunter2"}),
        "sources[0].sasl.password: expected an object with file: a secret is never in this document",
    ),
    (
        secured(sasl={"mechanism": "PLAIN", "username": "hunter2", "password": {"file": "/a"}}),
        "sources[0].sasl.username: expected an object with file: a secret is never in this document",
    ),
    (
        secured(sasl={"mechanism": "PLAIN", "username": {}, "password": {"file": "/a"}}),
        "sources[0].sasl.username: set either value or file",
    ),
    (
        secured(tls={"caCertificates": [{"file": "/a"}, "hunter2"]}),
        "sources[0].tls.caCertificates[1]: expected an object with file: a secret is never in this document",
    ),
    ({"topics": {"include": ["a", 5]}}, "topics.include[1]: 5 is not allowed: expected a string"),
    ({"target": None}, "target: null is not allowed: expected an object"),
    ({"target": {"bootstrap": "c:1", "tls": None}}, "target.tls: null is not allowed: expected an object"),
    (secured(sasl=None), "sources[0].sasl: null is not allowed: expected an object"),
    (
        secured(tls={"certificate": None, "key": None}),
        "sources[0].tls.certificate: expected an object with file: a secret is never in this document",
    ),
    ({"rejoin": None}, "rejoin: null is not allowed: expected an object"),
    (
        {"target": {"bootstrap": "c:1", "sasl": {"mechanism": "PLAIN", "username": {"value": "a"}}}},
        "target.sasl.password: missing",
    ),
    ({"naming": "Both"}, 'naming: "Both" is not allowed: expected Same or Prefixed'),
    ({"onGap": "Ignore"}, 'onGap: "Ignore" is not allowed: expected Stop or SkipToEarliest'),
    ({"mode": "Copy"}, 'mode: "Copy" is not allowed: expected Aggregate or Identity'),
    ({"name": "a b"}, "name: \"a b\" is not allowed: expected 1 to 63 letters, digits, '.', '_' or '-'"),
    ({"sources": []}, "sources: [] is not allowed: expected a list of at least one source"),
    ({"sources": [{"name": "w"}]}, "sources[0].bootstrap: missing"),
    (
        {"sources": GOOD["sources"] * 2},
        'sources[1].name: "west" is not allowed: expected a name that no other source has',
    ),
    (
        {"target": {"bootstrap": "c"}},
        'target.bootstrap: "c" is not allowed: expected HOST:PORT, or several with commas between',
    ),
    ({"http": "9404x"}, 'http: "9404x" is not allowed: expected HOST:PORT'),
    ({"logFormat": "xml"}, 'logFormat: "xml" is not allowed: expected plain or json'),
    ({"http": 9404}, "http: 9404 is not allowed: expected a string"),
    (
        {"topics": {"include": "x"}},
        'topics.include: "x" is not allowed: expected a list of regular expressions',
    ),
    (
        {"groups": {"include": ["("]}},
        'groups.include[0]: "(" is not allowed: expected a regular expression (missing ): ()',
    ),
    (
        {
            "groups": {"include": [".*"]},
            "sources": [*GOOD["sources"], {"name": "n", "bootstrap": "n:1"}],
            "naming": "Same",
        },
        "groups.include: with naming Same, 2 sources would share a group's position: expected naming Prefixed, or one"
        " source",
    ),
    ({"topics": {"includes": []}}, "topics.includes: unknown field: expected exclude, include"),
    (
        {"replicas": 2},
        "replicas: unknown field: expected configs, groups, http, logFormat, mode, name, namespace, naming, onGap,"
        " rejoin, sources, target, topics",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_field_is_named_with_allowed_values(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MirrorConfigError) as caught:
        parse(json.dumps({**GOOD, **change}))
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"name":' * 100_000, '{"name": "\ud800"}', "{'a': 1}"])
def test_malformed_document_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(MirrorConfigError, match=r"not JSON|not allowed|missing|unknown field") as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_wrong_expression_is_named() -> None:
    with pytest.raises(
        MirrorConfigError, match=r"topics\.exclude\[0\]: \"\(\" is not allowed: expected a regular expr"
    ):
        parse(json.dumps({**GOOD, "topics": {"exclude": ["("]}}))


def test_expression_matches_in_linear_time() -> None:
    """Python's own expressions would take longer than the universe has existed."""
    config = parse(json.dumps({**GOOD, "topics": {"include": ["(a+)+b"]}}))
    assert not config.includes("a" * 249)
    assert config.includes("a" * 248 + "b")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": 1}'])
def test_wrong_file_ends_command_with_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mirror.json"
    path.write_text(text)
    for argument in (path, tmp_path / "missing.json"):
        command = [str(Path(sys.executable).parent / "millstream-mirror"), str(argument)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"millstream-mirror: {argument}: ")
        assert done.stderr.count("\n") == 1
