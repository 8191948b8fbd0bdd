"""How `millstream` ends after failures: full or closed outputs, Ctrl-C, records too large."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from millstream.output import printable
from millstream_harness.command import COMMAND, environment, millstream
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

WAITING = re.compile(
    r"millstream: interrupted: waiting up to \d+ s for (?P<records>[\d,]+) records? in flight; "
    "press Ctrl-C again to end at once"
)
PATIENT = (
    "from millstream import records; records.DELIVERY_TIMEOUT_MS, records.FLUSH_TIMEOUT_S = 3_600_000, 3600.0;"
    " from millstream.cli import main; main()"
)
"""Starts a command that waits for brokers longer than any test runs."""
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def into(output: int, *arguments: str, bootstrap: str) -> tuple[int, str]:
    """Run it with this stdout; returns exit status and stderr."""
    ended = subprocess.run(
        [COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        env=environment(bootstrap),
        timeout=60,
    )
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("topic", "list"), ""),
        (("cluster", "info", "-o", "json"), ""),
        (("consume", "{topic}"), ": 3 records read from {topic}"),
        (("--help",), ""),
    ],
)
def test_an_output_that_is_full(
    run: Run, topic: str, shared_broker: InProcessBroker, arguments: tuple[str, ...], more: str
) -> None:
    run("produce", topic, stdin=b"a\nb\nc\n")
    with Path("/dev/full").open("wb") as full:
        status, said = into(
            full.fileno(),
            *(one.replace("{topic}", topic) for one in arguments),
            bootstrap=shared_broker.bootstrap,
        )
    assert status == 1
    reason = "the output cannot be written (no space left on device)"
    assert said == f"millstream: {reason}{more.replace('{topic}', topic)}\n"


@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "topic", "topic list", "produce t", "local status"]
)
@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [
        (">&-", 1, "millstream: stdout is closed, nothing was done: redirect it to a file or to /dev/null\n"),
        (">&- 2>&-", 1, ""),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
def test_a_stdout_that_is_closed(streams: str, status: int, said: str, arguments: str) -> None:
    ended = redirected(f"{arguments} {streams}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", said)


@pytest.mark.parametrize("streams", ["2>&-", "<&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [("--help", 0), ("--version", 0), ("topic", 2), ("no-such-command", 2), ("topic list", 1)],
)
def test_a_stderr_that_takes_nothing(streams: str, arguments: str, status: int) -> None:
    ended = redirected(f"{arguments} {streams}")
    assert (ended.returncode, ended.stderr) == (status, "")
    assert bool(ended.stdout) == (status == 0)


def test_a_stdin_that_is_closed_has_no_records(topic: str, shared_broker: InProcessBroker) -> None:
    ended = redirected(f"produce {topic} <&-", shared_broker.bootstrap)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"0 records to {topic}\n", "")
    ended = redirected(f"topic delete {topic} <&-", shared_broker.bootstrap)
    assert ended.returncode == 2
    assert "cannot ask for confirmation without a terminal" in ended.stderr


def redirected(command: str, bootstrap: str = "127.0.0.1:1") -> subprocess.CompletedProcess[str]:
    """Run it in a shell, with redirections."""
    return subprocess.run(
        ["sh", "-c", f"{COMMAND} {command}"],
        capture_output=True,
        text=True,
        env=environment(bootstrap),
        timeout=60,
    )


def test_a_reader_that_has_gone(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    run("produce", topic, "--partition", "0", stdin=b"record\n" * 100)
    reading, writing = os.pipe()
    os.close(reading)
    group = unique("gone")
    status, said = into(writing, "consume", topic, "--group", group, bootstrap=shared_broker.bootstrap)
    os.close(writing)
    assert status == 1
    assert said == f"millstream: the reader of the output has gone: 0 records read from {topic}\n"
    assert run("consume", topic, "--group", group).stdout == b"record\n" * 100  # nothing was committed


def test_ctrl_c_says_what_was_produced(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    with subprocess.Popen(
        [COMMAND, "produce", topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(shared_broker.bootstrap),
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"line\n" * 10_000)
        process.stdin.flush()
        while not run("consume", topic, "--max", "1").stdout:  # so it has begun to deliver
            pass
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(60) == 130
        process.stdin.close()
    there = run("consume", topic).stdout.count(b"\n")
    *waiting, last = said.splitlines()  # a slow broker may have records in flight
    assert last == f"millstream: interrupted: {there:,} records are in {topic}"
    assert all(WAITING.fullmatch(line) for line in waiting)


@pytest.mark.parametrize("whole", [False, True], ids=["while it reads", "at the end of its input"])
def test_a_second_ctrl_c_ends_the_wait_for_brokers_that_have_gone(tmp_path: Path, whole: bool) -> None:
    with InProcessBroker(tmp_path) as broker:
        millstream("topic", "create", "t", "--partitions", "1", bootstrap=broker.bootstrap)
        with subprocess.Popen(
            [sys.executable, "-c", PATIENT, "produce", "t"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(broker.bootstrap),
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"line\n" * 1000)
            process.stdin.flush()
            there = 0
            while there < 1000:  # all of it
                there = millstream("consume", "t", bootstrap=broker.bootstrap).stdout.count(b"\n")
            broker.kill()
            process.stdin.write(b"line\n" * 2000)
            process.stdin.flush()
            until_read(process.stdin)  # so it has accepted most of it
            if whole:
                process.stdin.close()
            process.send_signal(signal.SIGINT)
            found = WAITING.fullmatch(process.stderr.readline().decode().rstrip())
            assert found is not None
            process.send_signal(signal.SIGINT)  # its records time out in an hour
            rest = process.stderr.read().decode()
            assert process.wait(60) == 130
            if not whole:
                process.stdin.close()
    said = f"1,000 records are in t; {found['records']} records may be (not acknowledged)"
    assert rest == f"millstream: interrupted: {said}\n"


def until_read(stdin: IO[bytes]) -> None:
    """Wait until the reader of a pipe has emptied it."""
    left = 1
    while left:
        time.sleep(0.05)
        left = struct.unpack("i", fcntl.ioctl(stdin.fileno(), termios.FIONREAD, bytes(4)))[0]


def test_a_record_that_is_too_large(run: Run, topic: str) -> None:
    run("config", "set", f"topic/{topic}", "max.message.bytes=5000")
    ended = run("produce", topic, stdin=b"a\nb\n" + b"x" * 6000 + b"\nc\n", status=2)
    assert ended.stderr.decode() == (
        f"millstream: line 3 has 6,000 bytes; {topic} takes 5,000 with a record's overhead; "
        f"2 records are in {topic}: split the line, or raise the topic's max.message.bytes (millstream config set)\n"
    )
    assert run("consume", topic).stdout.count(b"\n") == 2


def test_a_topic_may_take_larger_records_than_clients_send_by_default(run: Run, topic: str) -> None:
    run("config", "set", f"topic/{topic}", "max.message.bytes=5000000")
    run("produce", topic, stdin=b"x" * 3_000_000 + b"\n")
    assert len(run("consume", topic).stdout) == 3_000_001


def test_a_file_that_cannot_be_read() -> None:
    ended = millstream("produce", "t", "--file", "/no/such/file", bootstrap=None)
    assert ended.returncode == 2
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith("millstream: ")
    assert "/no/such/file" in line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    assert "_MILLSTREAM_COMPLETE" in run("completion", shell).stdout.decode()


def completed(line: str, bootstrap: str) -> list[str]:
    """Bash's completions of the last word."""
    words = line.split(" ")
    asked = {"_MILLSTREAM_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ended = subprocess.run(
        [COMMAND], capture_output=True, text=True, env={**environment(bootstrap), **asked}, timeout=60
    )
    return [offer.partition(",")[2] for offer in ended.stdout.split()]


def test_completions(run: Run, topic: str, shared_broker: InProcessBroker) -> None:
    bootstrap = shared_broker.bootstrap
    assert completed("millstream to", bootstrap) == ["top", "topic"]
    assert completed("millstream topic de", bootstrap) == ["delete", "describe"]
    assert "--dry-run" in completed("millstream group reset g --", bootstrap)
    assert topic in completed(f"millstream topic describe {topic[:-1]}", bootstrap)
    assert topic in completed(f"millstream -b {bootstrap} consume {topic[:-1]}", "127.0.0.1:1")
    assert completed("millstream consume x", "127.0.0.1:1") == []


def test_bash_completes_by_the_script(shared_broker: InProcessBroker) -> None:
    script = (
        f'PATH={Path(COMMAND).parent}:$PATH; eval "$(millstream completion bash)"; '
        'COMP_WORDS=(millstream gro); COMP_CWORD=1; _millstream_completion millstream; echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "group"


def test_a_host_that_is_no_name() -> None:
    ended = millstream("cluster", "info", bootstrap="a..b:9092")
    (line,) = ended.stderr.decode().splitlines()
    assert ended.returncode == 1
    assert "a..b:9092" in line
    assert "unknown host" in line


def test_names_of_clients_do_nothing_to_a_terminal() -> None:
    assert printable("delays\x1b[2J\nforged \x9b row") == "delays\\x1b[2J\\nforged \\x9b row"
    assert printable("Zürich → Genève") == "Zürich → Genève"
