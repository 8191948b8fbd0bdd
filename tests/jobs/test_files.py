"""Files on POSIX and in S3 guarantee what publication relies on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.s3 import BUCKET, S3Server, s3_server
from millstream_jobs.files import Files, PosixFiles, S3Files
from millstream_jobs.run import S3

pytestmark = pytest.mark.process

DRIVERS = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as started:
        yield started


@pytest.fixture(params=["POSIX", "S3"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    if request.param == "POSIX":
        return PosixFiles(str(tmp_path / "lake"))
    server: S3Server = request.getfixturevalue("server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return S3Files(f"s3a://{BUCKET}/{tmp_path.name}", S3(endpoint=server.endpoint, path_style=True))


def test_a_file_system_does_what_publication_needs(files: Files) -> None:
    assert not files.exists("a/b")
    assert files.list("a") == []
    with pytest.raises(FileNotFoundError):
        files.read("a/b")
    files.create("a/b", b"\x00\xff")
    with pytest.raises(FileExistsError):
        files.create("a/b", b"other")
    assert files.read("a/b") == b"\x00\xff"
    assert files.exists("a")
    files.replace("a/b", b"new")
    assert files.read("a/b") == b"new"
    files.make_folder("c/date=2013-01-01")
    files.make_folder("c/date=2013-01-01")
    assert files.rename("a/b", "c/date=2013-01-01/b")
    assert not files.rename("a/b", "c/date=2013-01-01/d"), "no such source"
    files.create("a/b", b"other")
    assert not files.rename("a/b", "c/date=2013-01-01/b"), "the target is there"
    assert files.list("a") + files.list("c") == ["b", "date=2013-01-01/b"]
    files.delete("c")
    files.delete("c")
    files.delete("a/b")
    assert not files.exists("a/b")
    assert files.list("c") == []


def test_a_folder_is_renamed_in_one_step_and_replaces_nothing(tmp_path: Path) -> None:
    files = PosixFiles(str(tmp_path))
    files.create("a/b", b"first")
    assert files.rename_folder("a", "moved")
    files.create("a/b", b"second")
    assert not files.rename_folder("a", "moved")
    assert files.read("moved/b") == b"first"
    with pytest.raises(FileNotFoundError):
        files.rename_folder("none", "elsewhere")


def test_of_many_that_create_one_file_one_does(files: Files) -> None:
    together = threading.Barrier(DRIVERS)
    won: list[bytes] = []

    def create(content: bytes) -> None:
        together.wait(120)
        try:
            files.create("runs/manifest", content)
        except FileExistsError:
            return
        won.append(content)

    threads = [threading.Thread(target=create, args=(str(number).encode(),)) for number in range(DRIVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [files.read("runs/manifest")]
    assert files.list("runs") == ["manifest"]


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_one_line_that_names_them(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    for name, value in {**server.environment, wrong: "wrong"}.items():
        monkeypatch.setenv(name, value)
    files = S3Files(f"s3a://{BUCKET}/t", S3(endpoint=server.endpoint, path_style=True))
    for act in (lambda: files.exists("a"), lambda: files.create("a", b"")):
        with pytest.raises(OSError, match="refuses the credentials: check AWS_ACCESS_KEY_ID") as caught:
            act()
        assert "\n" not in str(caught.value)


def test_a_lock_is_free_when_its_holder_is_done(tmp_path: Path) -> None:
    files = PosixFiles(str(tmp_path))
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with files.locked("lock"):
            order.append("second")

    with files.locked("lock"):
        other = threading.Thread(target=second)
        other.start()
        begun.wait(120)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
