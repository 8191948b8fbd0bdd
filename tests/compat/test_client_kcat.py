"""kcat: produce with every codec, consume by offset, time and group, list and query."""

from __future__ import annotations

import json
import subprocess

import pytest

from millstream_harness.java import run
from millstream_harness.scenario import BASE_TIMESTAMP_MS, CODECS, DEADLINE_S, eventually, unique
from millstream_harness.tools import require

pytestmark = pytest.mark.process


@pytest.fixture
def kcat(bootstrap: str) -> list[str]:
    return [require("kcat"), "-b", bootstrap, "-q", "-m", "30", "-X", "fetch.wait.max.ms=20"]


# Records that a command line can express: kcat takes no binary keys, and headers only for all records alike.
LINES = [f"key-{number % 7}|value-{number} {'x' * (number * 3)}" for number in range(200)]


def produce(kcat: list[str], topic: str, lines: list[str], *args: str) -> None:
    run([*kcat, "-P", "-t", topic, "-K", "|", *args], stdin="".join(f"{line}\n" for line in lines))


def consume(kcat: list[str], topic: str, *args: str) -> list[str]:
    done = run([*kcat, "-C", "-t", topic, "-e", "-f", "%k|%s\\n", *args])
    return done.stdout.splitlines()


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_round_trips(kcat: list[str], codec: str) -> None:
    topic = unique(f"kcat-{codec}")
    produce(kcat, topic, LINES, "-X", f"compression.codec={codec}", "-H", "trace=17")
    assert consume(kcat, topic, "-p", "0", "-o", "beginning", "-X", "check.crcs=true") == LINES
    assert consume(kcat, topic, "-p", "0", "-o", "-3") == LINES[-3:]
    assert consume(kcat, topic, "-p", "0", "-o", "190") == LINES[190:]
    (first,) = run([*kcat, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-J"]).stdout.splitlines()
    envelope = json.loads(first)
    assert envelope["headers"] == ["trace", "17"]
    assert (envelope["partition"], envelope["offset"], envelope["key"]) == (0, 0, "key-0")


def test_an_idempotent_producer_and_null_values(kcat: list[str]) -> None:
    topic = unique("kcat-idempotent")
    produce(kcat, topic, [*LINES[:5], "gone|"], "-Z", "-X", "enable.idempotence=true")
    done = run([*kcat, "-C", "-t", topic, "-o", "beginning", "-e", "-f", "%o %k %S\\n"])
    assert done.stdout.splitlines()[-1] == "5 gone -1"


def test_list_and_query(kcat: list[str]) -> None:
    topic = unique("kcat-list")
    produce(kcat, topic, LINES[:10])
    listed = json.loads(run([*kcat, "-L", "-J", "-t", topic]).stdout)
    assert listed["controllerid"] == 1
    assert [broker["id"] for broker in listed["brokers"]] == [1]
    (described,) = listed["topics"]
    assert described["topic"] == topic
    assert described["partitions"][0]["leader"] == 1
    for timestamp, offset in ((-2, 0), (-1, 10), (BASE_TIMESTAMP_MS, 0)):
        said = run([*kcat, "-Q", "-t", f"{topic}:0:{timestamp}"]).stdout
        assert said.split() == [topic, "[0]", "offset", str(offset)]


def test_groups_share_and_resume(kcat: list[str]) -> None:
    topic, group = unique("kcat-group"), unique("group")
    produce(kcat, topic, LINES)
    member = [*kcat, "-G", group, "-e", "-f", "%o\\n", "-X", "auto.offset.reset=earliest", topic]
    first = run(member, timeout=DEADLINE_S).stdout.splitlines()
    assert first == [str(offset) for offset in range(len(LINES))]
    produce(kcat, topic, LINES[:3])
    again = run(member, timeout=DEADLINE_S).stdout.splitlines()
    assert again == ["200", "201", "202"]


def test_a_consumer_waits_for_what_comes(kcat: list[str]) -> None:
    topic = unique("kcat-tail")
    produce(kcat, topic, LINES[:1])
    with subprocess.Popen(
        [*kcat, "-u", "-C", "-t", topic, "-o", "beginning", "-c", "2", "-f", "%s\\n"],
        stdout=subprocess.PIPE,
        text=True,
    ) as tail:
        try:
            assert tail.stdout is not None
            assert tail.stdout.readline().strip() == LINES[0].split("|")[1].strip()
            produce(kcat, topic, ["k|later"])
            assert tail.stdout.readline() == "later\n"
            eventually(tail.poll, lambda status: status == 0, "kcat after its two records")
        finally:
            tail.kill()
