"""Messages on docs/troubleshooting.md, each as the command or a starting broker prints it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream_harness.command import millstream
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.pages import matches

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text()
BROKER = str(Path(sys.executable).parent / "millstream-broker")


def headings(section: str) -> list[str]:
    """The messages of a section."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^### `([^`]+)`$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def said_by_the_command(shared_broker: InProcessBroker) -> list[str]:
    def said(*arguments: str, stdin: bytes = b"", bootstrap: str = shared_broker.bootstrap) -> str:
        done = millstream(*arguments, stdin=stdin, bootstrap=bootstrap)
        assert done.returncode in (1, 2), done
        return done.stderr.decode().removeprefix("millstream: ")

    assert millstream("topic", "create", "trouble", bootstrap=shared_broker.bootstrap).returncode == 0
    return [
        said("topic", "list", bootstrap="127.0.0.1:1"),
        said("topic", "describe", "no-such"),
        said("group", "describe", "no-such"),
        said("topic", "create", "trouble"),
        said("topic", "create", "trouble-3", "--replication-factor", "3"),
        said("produce", "trouble", stdin=b"a" * 2_000_000 + b"\n"),
    ]


@pytest.fixture(scope="module")
def said_by_a_broker(shared_broker: InProcessBroker, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    own = {"http.listener": "127.0.0.1:0", "listeners": "PLAINTEXT://127.0.0.1:0"}

    def said(**changes: str) -> str:
        settings = {**own, "log.dirs": str(tmp_path_factory.mktemp("trouble"))}
        settings |= {key.replace("_", "."): value for key, value in changes.items()}
        words = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
        done = subprocess.run([BROKER, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (1, 2), done
        return done.stderr.splitlines()[-1].removeprefix("millstream-broker: ")

    return [
        said(log_retention_hour="1"),
        said(listeners=f"PLAINTEXT://{shared_broker.bootstrap}"),
        said(listeners="PLAINTEXT://no-such-host.invalid:0"),
        said(log_dirs=str(shared_broker.data)),
        said(listeners="OFFICE://127.0.0.1:0"),
    ]


@pytest.mark.parametrize("message", headings("The command `millstream`"))
def test_the_command_prints_it(said_by_the_command: list[str], message: str) -> None:
    assert [one for one in said_by_the_command if matches(message, one)], said_by_the_command


@pytest.mark.parametrize("message", headings("The broker does not start"))
def test_a_broker_prints_it(said_by_a_broker: list[str], message: str) -> None:
    assert [one for one in said_by_a_broker if matches(message, one)], said_by_a_broker


def test_each_message_that_is_tried_has_its_section(
    said_by_the_command: list[str], said_by_a_broker: list[str]
) -> None:
    for section, said in (
        ("The command `millstream`", said_by_the_command),
        ("The broker does not start", said_by_a_broker),
    ):
        assert len(headings(section)) == len(said)
