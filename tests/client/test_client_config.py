"""Files with a client's settings: valid ones, and errors about others, which never contain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import client_config
from millstream.errors import BadInput
from millstream.options import Settings


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


def test_line_goes_on_after_a_backslash(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("! of Java\na=1 \\\n  # 2 \\\n  3\nb=x\\\\\nc=\\d\nsasl.password=e\\\nf=1")
    assert client_config.read("--x", str(path)) == {
        "a": "1 # 2 3",
        "b": "x\\\\",
        "c": "\\d",
        "sasl.password": "e\\",
        "f": "1",
    }


def test_values_of_javas_own_keys_have_javas_escapes(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text(
        'sasl.jaas.config=M required p\\="\\\\"\\u00e9\\ud83d\\ude00";\nssl.keystore.key=a\\nb\nsasl.password=\\n\n'
    )
    assert client_config.read("--x", str(path)) == {
        "sasl.jaas.config": 'M required p="\\"é😀";',
        "ssl.keystore.key": "a\nb",
        "sasl.password": "\\n",
    }


def test_file_may_name_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("bootstrap.servers=x:1\nsasl.password=sesame\n")
    found = client_config.load("--x", str(path))
    assert (found.bootstrap, found.settings) == ("x:1", {"sasl.password": "sesame"})
    assert found.where == f"--x: {path}"
    assert "sesame" not in repr(found)


def test_profile_is_a_file_of_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "millstream"
    with pytest.raises(
        BadInput, match=rf'--profile: there is no profile "prod": write .* to {folder}/NAME\.pr'
    ):
        client_config.profile("--profile", "prod")
    folder.mkdir()
    for name in ("test", "prod"):
        (folder / f"{name}.properties").write_text(f"bootstrap.servers={name}:1\n")
    assert client_config.profile("--profile", "prod").bootstrap == "prod:1"
    for wrong in ("none", "../prod", "prod.properties", ""):
        with pytest.raises(BadInput, match=r"there is no profile .*: use prod, test, or write"):
            client_config.profile("--profile", wrong)


def cluster_of(**options: str) -> tuple[str, dict[str, object]]:
    settings = Settings()
    for name, value in options.items():
        setattr(settings, name, value)
    return settings.cluster.bootstrap, settings.cluster.config


def test_option_comes_before_file_before_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MILLSTREAM_CONFIG", "MILLSTREAM_PROFILE", "MILLSTREAM_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    named, plain = tmp_path / "named", tmp_path / "plain"
    named.write_text("bootstrap.servers=file:1\n")
    plain.write_text("security.protocol=SSL\n")
    assert cluster_of() == ("localhost:9092", {})
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", "environment:1")
    assert cluster_of() == ("environment:1", {})
    assert cluster_of(config=str(plain)) == ("environment:1", {"security.protocol": "SSL"})
    assert cluster_of(config=str(named)) == ("file:1", {})
    assert cluster_of(config=str(named), bootstrap="option:1") == ("option:1", {})
    monkeypatch.setenv("MILLSTREAM_CONFIG", str(named))
    assert cluster_of() == ("file:1", {})
    assert cluster_of(config=str(plain)) == ("environment:1", {"security.protocol": "SSL"})
    with pytest.raises(BadInput, match="--config and --profile are given: give one of them"):
        cluster_of(config=str(plain), profile="prod")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput, match=f"--x: {path}: cannot be read: "):
            client_config.read("--x", str(path))
