"""Publishing to a plain table in S3: the job is killed at each of its steps, and started again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream_jobs.outputs import OutputError, objects
from millstream_jobs.run import OffsetRange, Output, Run
from millstream_jobs.value import Value

RUN = Run(
    "load-0001", "host:9092", (OffsetRange("flights", 0, 0, 6),), Output("/lake"), Value(schema="a INT")
)
STAGED = {
    "date=2013-01-01/part-0": b"one",
    "date=2013-01-02/part-0": b"two",
    "date=2013-01-02/part-1": b"three",
}
PUBLISHED = {f"load_run=load-0001/{name}": content for name, content in STAGED.items()}


class Killed(Exception):
    pass


class LocalFiles:
    """`Files` on a folder. The process is killed before step number ``steps``. A rename copies and deletes,
    as in an object store, and counts as two steps."""

    def __init__(self, root: Path, steps: int = 1_000_000) -> None:
        self.root = root
        self.steps = steps

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Killed

    def exists(self, path: str) -> bool:
        self.step()
        return (self.root / path).exists()

    def list(self, folder: str) -> list[str]:
        self.step()
        base = self.root / folder
        return [str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()]

    def read(self, path: str) -> bytes:
        self.step()
        return (self.root / path).read_bytes()

    def create(self, path: str, content: bytes) -> None:
        self.step()
        if (self.root / path).exists():
            raise FileExistsError(path)
        self.make_folder(path.rpartition("/")[0])
        (self.root / path).write_bytes(content)

    def replace(self, path: str, content: bytes) -> None:
        raise NotImplementedError("a run's objects are never replaced")

    def make_folder(self, path: str) -> None:
        self.step()
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def rename(self, source: str, target: str) -> bool:
        self.step()
        if not (self.root / source).exists() or (self.root / target).exists():
            return False
        shutil.copy(self.root / source, self.root / target)
        self.step()
        (self.root / source).unlink()
        return True

    def delete(self, path: str) -> None:
        self.step()
        for file in sorted((self.root / path).rglob("*"), reverse=True):
            self.step()
            file.rmdir() if file.is_dir() else file.unlink()
        if (self.root / path).exists():
            (self.root / path).rmdir()

    def table(self) -> dict[str, bytes]:
        """The table's files as a reader sees them."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not path.relative_to(self.root).parts[0].startswith("_")
        }


def attempt(files: LocalFiles, name: str) -> objects.Manifest:
    """Like `load`, with a stage that writes the same records under file names of this attempt."""
    manifest = objects.find_manifest(files, RUN)
    if manifest is None:
        folder = f"{objects.staging_path(RUN.name)}/{name}"
        for file, content in STAGED.items():
            files.make_folder(f"{folder}/{file.rpartition('/')[0]}")
            files.create(f"{folder}/{file}-{name}", content)
        files.create(f"{folder}/_SUCCESS", b"")
        manifest = objects.commit(files, RUN, name, rows=6, corrupt_records=1)
    objects.finish(files, manifest)
    return manifest


def rows(table: dict[str, bytes]) -> dict[str, bytes]:
    """The table with the attempt removed from its files' names."""
    return {name.rpartition("-")[0]: content for name, content in table.items()}


def steps_of_an_attempt(folder: Path) -> int:
    files = LocalFiles(folder)
    attempt(files, "a")
    return 1_000_000 - files.steps


def test_an_attempt_publishes_its_files_under_names_with_the_run(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    manifest = attempt(files, "a")
    assert rows(files.table()) == PUBLISHED
    assert manifest.rows == 6
    assert manifest.corrupt_records == 1
    assert not files.exists("_staging/load-0001")


def test_a_finished_run_is_not_written_again(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    first = attempt(files, "a")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert attempt(files, "b") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_killed_after_any_step_and_started_again_every_row_is_there_once(tmp_path: Path) -> None:
    for step in range(steps_of_an_attempt(tmp_path / "whole")):
        root = tmp_path / str(step)
        root.mkdir()
        with pytest.raises(Killed):
            attempt(LocalFiles(root, step), "a")
        seen = rows(LocalFiles(root).table())
        assert seen.items() <= PUBLISHED.items(), (
            f"killed before step {step}: a reader saw what is not published"
        )
        attempt(LocalFiles(root), "b")
        assert rows(LocalFiles(root).table()) == PUBLISHED, f"killed before step {step}"
        assert not (root / "_staging" / "load-0001").exists(), f"killed before step {step}"


def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each attempt gets one step further than the one before."""
    for step in range(3 * steps_of_an_attempt(tmp_path / "whole")):
        try:
            attempt(LocalFiles(tmp_path / "lake", step), f"a{step}")
        except Killed:
            continue
        break
    else:
        pytest.fail("it never came to an end")
    assert rows(LocalFiles(tmp_path / "lake").table()) == PUBLISHED


def test_of_two_attempts_at_once_the_first_to_commit_counts(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for name in ("a", "b"):
        files.make_folder(f"_staging/load-0001/{name}")
        files.create(f"_staging/load-0001/{name}/part-0-{name}", b"rows")
    first = objects.commit(files, RUN, "a", 6, 0)
    assert objects.commit(files, RUN, "b", 6, 0) == first
    objects.finish(files, first)
    assert files.table() == {"load_run=load-0001/part-0-a": b"rows"}


def test_a_name_that_another_range_has_is_refused(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    attempt(files, "a")
    other = Run(RUN.name, RUN.bootstrap, (OffsetRange("flights", 0, 6, 9),), RUN.output, RUN.value)
    with pytest.raises(OutputError, match=r"other offsets.*flights-0 0 to 6, here flights-0 6 to 9"):
        objects.find_manifest(files, other)


def test_what_somebody_removed_in_between_is_said(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.make_folder("_staging/load-0001/a")
    files.create("_staging/load-0001/a/part-0", b"rows")
    manifest = objects.commit(files, RUN, "a", 6, 0)
    (tmp_path / "_staging/load-0001/a/part-0").unlink()
    with pytest.raises(OutputError, match="neither staged nor published"):
        objects.finish(files, manifest)
