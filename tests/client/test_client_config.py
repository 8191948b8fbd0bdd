"""Files with a client's settings: valid ones, and errors about others, which never contain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import client_config
from millstream.errors import BadInput


def test_lines_of_keys_and_values(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("# TLS\nsecurity.protocol = SSL\n\n  ssl.ca.location=/a=b\nsasl.password=\n")
    assert client_config.read("--x", str(path)) == {
        "security.protocol": "SSL",
        "ssl.ca.location": "/a=b",
        "sasl.password": "",
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a=b\nopen sesame\n", "line 2: is not KEY=VALUE: write lines such as security.protocol=SASL_SSL"),
        (b"=b", "line 1: is not KEY=VALUE"),
        (b"a=1\nb=2\na=3", "line 3: a is given twice: give each key once"),
        (b"bootstrap.servers=x:1", "line 1: bootstrap.servers is not allowed: the command's options name"),
        (b"a=\xff", "cannot be read: it is not UTF-8 text: name a file of KEY=VALUE lines"),
        (b"#" * (client_config.MAX_BYTES + 1), "has more than 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "c"
    path.write_bytes(content)
    with pytest.raises(BadInput) as raised:
        client_config.read("--x", str(path))
    assert str(raised.value).startswith(f"--x: {path}")
    assert said in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput, match=f"--x: {path}: cannot be read: "):
            client_config.read("--x", str(path))
