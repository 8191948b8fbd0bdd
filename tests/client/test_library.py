"""Import of the library: the modules that it loads, its types, and its tree of errors."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

import millstream
from millstream import errors, retriable
from millstream.connection import failed
from millstream.errors import MillstreamError
from millstream.producing.undelivered import Failures
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

SOURCE = Path(millstream.__file__).parent
OF_THE_STANDARD_LIBRARY_AT_MOST = 80
"""Modules that `import millstream` may load; a time limit would depend on the machine."""


def loaded(statement: str) -> set[str]:
    """The modules that a statement loads in a fresh interpreter."""
    new = "json.dumps([*set(sys.modules) - before])"
    script = f"import sys, json; before = set(sys.modules); {statement}; print({new})"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    found: list[str] = json.loads(ended.stdout)
    return set(found)


def test_import_loads_nothing_but_itself() -> None:
    modules = loaded("import millstream")
    others = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == {"millstream"}
    assert len(modules) <= OF_THE_STANDARD_LIBRARY_AT_MOST


def test_producers_and_streams_do_not_load_the_commands_or_the_extras() -> None:
    modules = loaded("import millstream; millstream.Producer")
    assert "confluent_kafka" in modules
    assert not {"click", "rich", "kazoo", "fastavro", "msgspec"} & modules
    assert not {"click", "rich", "kazoo", "fastavro"} & loaded("import millstream; millstream.connect")


def test_command_loads_kafkas_client_and_tables_only_where_it_uses_them() -> None:
    """`millstream --help` and `millstream local` take half the time without."""
    assert not {"confluent_kafka", "rich", "asyncio"} & loaded("import millstream.cli")


OF_THE_COMMAND = ("administering", "cli", "commands", "diagnosis", "options", "output", "streams")


def test_library_works_without_the_packages_of_the_command() -> None:
    """Each module of the library is imported where click, rich and millstream_kafka are missing."""
    files = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    modules = [
        ".".join(("millstream", *path.parts)) for path in files
        if path.parts[0] not in OF_THE_COMMAND and path.name not in ("__init__", "__main__")
    ]  # fmt: skip
    assert len(modules) > 40
    loaded(
        "sys.modules.update(click=None, rich=None, millstream_kafka=None); import importlib;"
        f" [*map(importlib.import_module, {modules})]"
    )


@pytest.mark.parametrize("package", ["click", "rich", "millstream_kafka"])
def test_command_without_its_extra_names_it(package: str) -> None:
    script = f"import sys; sys.modules['{package}'] = None; from millstream.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    line = f"millstream: the command needs {package}: pip install 'millstream[command]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", line)


def test_every_name_of_the_library_is_there() -> None:
    assert set(millstream.__all__) <= set(dir(millstream))
    for name in millstream.__all__:
        found = getattr(millstream, name)
        assert name == "__version__" or inspect.getdoc(found), f"{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        millstream.no_such  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    assert (SOURCE / "py.typed").exists()
    text = (SOURCE / "__init__.py").read_text()
    for_checkers = dict(re.findall(r"^    from millstream\.([\w.]+) import (\w+) as \2$", text, re.MULTILINE))
    assert {name: module for module, name in re.findall(
        r"^    from millstream\.([\w.]+) import (\w+) as \2$", text, re.MULTILINE
    )} == millstream._MODULES  # fmt: skip
    assert for_checkers


def test_errors_of_the_library_name_no_options_of_the_command() -> None:
    """Outside the command, no text but a docstring has an option such as --bootstrap."""
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).with_suffix("").parts[0] in OF_THE_COMMAND:
            continue
        tree = ast.parse(path.read_text())
        texts = {
            id(node): node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):  # a docstring
                texts.pop(id(node.value), None)
        for text in texts.values():
            assert not re.search(r"(^|[ (])--[a-z]", text), f"{path.name}: {text}"


def test_error_names_parameters_or_options() -> None:
    error = errors.BadInput("start: 9 is beyond the end of t: a", "`follow` waits, `other` is not an option")
    assert str(error).startswith("start: 9 is beyond the end of t: a: `follow` waits")
    assert error.naming({"start": "--from", "follow": "--follow", "a": "--all"}) == (
        "--from: 9 is beyond the end of t: a: --follow waits, `other` is not an option"
    )


def test_one_tree_of_errors_is_as_documented() -> None:
    """The tree in the docstring has each class in its place, with its value of retriable."""
    classes = {
        name: one for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, Exception) and one.__module__ == errors.__name__
    }  # fmt: skip
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^(?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+) {2,}(?P<text>.*)", line + "  "):
            depth = len(found["lead"]) // 4
            path[depth:] = [found["name"]]
            drawn[found["name"]] = path[depth - 1] if depth else "Exception"
            if found["name"] != "Failed":
                assert classes[found["name"]].retriable == ("(retriable)" in found["text"]), found["name"]
    assert drawn == {name: one.__bases__[0].__name__ for name, one in classes.items()}


def test_retriable_codes_are_those_of_kafka() -> None:
    """Except an unknown topic, which is the caller's error here, as in UnknownTopic."""
    named = {getattr(KafkaError, name) for name in dir(KafkaError) if name.isupper() and name[0] != "_"}
    of_kafka = {int(code) for code in ErrorCode if code.retriable and int(code) in named}
    names = (
        "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID",
        "SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH", "SHARE_SESSION_LIMIT_REACHED",
    )  # fmt: skip
    others = {
        getattr(KafkaError, name) for name in names if hasattr(KafkaError, name)
    }  # older clients lack some
    assert of_kafka - others == retriable.OF_BROKERS
    assert all(code < 0 for code in retriable.LOCAL)
    for code, expected in (
        (KafkaError.NOT_LEADER_FOR_PARTITION, True),
        (KafkaError._TRANSPORT, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError._FATAL, False),
    ):
        error = KafkaError(code)
        assert failed(KafkaException(error)).retriable is expected
        failures = Failures()
        failures.add("t", 0, b"k", error)
        with pytest.raises(errors.NotDelivered) as raised:
            failures.raise_any()
        assert raised.value.retriable is expected


def test_retriable_follows_kafka() -> None:
    assert not MillstreamError.retriable
    assert errors.Failed("not leader", retriable=True).retriable
    assert not errors.Failed("denied").retriable
    one = errors.Undelivered("t", 0, "timed out", 2, (b"k", None), retriable=True)
    two = errors.Undelivered("t", -1, "denied", 1, (None,), retriable=False)
    assert errors.NotDelivered([one]).retriable
    both = errors.NotDelivered([one, two])
    assert not both.retriable
    assert str(both) == (
        "3 records were not delivered: 2 of t-0 (keys 'k', none): timed out; 1 of t (keys none): denied"
    )
