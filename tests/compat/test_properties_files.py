"""Files in Java's .properties format: brokers, the command and Java read the same values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from millstream import client_config
from millstream_broker.config.config import parse_properties
from millstream_harness.java import SHORT_LIVED
from millstream_harness.tools import require

KEY = "sasl.jaas.config"
VALUES = {
    r"two words": "two words",
    r"a\nb\tc": "a\nb\tc",
    r"\u0041\u00e9": "A\u00e9",
    r"\ud83d\ude00": "\U0001f600",
    r'M required p\="\\";': 'M required p="\\";',
    r"\x\:\#": "x:#",
    "one,\\\n  two": "one,two",
    "a\u2028b\x85c\x0bd\x1ce": "a\u2028b\x85c\x0bd\x1ce",
    "\u00a0a": "\u00a0a",
}
"""What a file has, and what is read."""

PROGRAM = """
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
class Values {
    public static void main(String[] paths) throws Exception {
        var out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        for (var path : paths) {
            var found = new Properties();
            found.load(new InputStreamReader(new FileInputStream(path), StandardCharsets.UTF_8));
            out.print(found.getProperty("sasl.jaas.config") + "\\0");
        }
    }
}
"""


@pytest.mark.parametrize("written", VALUES, ids=json.dumps)
def test_brokers_and_the_command_read_the_same_value(written: str, tmp_path: Path) -> None:
    text = f"{KEY}={written}\nsasl.mechanism=PLAIN\n"
    path = tmp_path / "client.properties"
    path.write_text(text, "utf-8")
    assert parse_properties(text) == {KEY: VALUES[written], "sasl.mechanism": "PLAIN"}
    assert {key: value for key, (_, value) in client_config._parsed("--config", str(path)).items()} == {
        KEY: VALUES[written],
        "sasl.mechanism": "PLAIN",
    }


def test_half_a_character_can_be_written() -> None:
    assert parse_properties(r"key=\ud83d!")["key"].encode() == "\ufffd!".encode()


@pytest.mark.soak
def test_java_reads_the_same_values(tmp_path: Path) -> None:
    (tmp_path / "Values.java").write_text(PROGRAM)
    for number, written in enumerate(VALUES):
        (tmp_path / f"{number}.properties").write_text(f"{KEY}={written}\n", "utf-8")
    paths = [str(tmp_path / f"{number}.properties") for number in range(len(VALUES))]
    command = [require("java"), *SHORT_LIVED, str(tmp_path / "Values.java"), *paths]
    found = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.decode("utf-8")
    assert found.split("\0")[:-1] == list(VALUES.values())
