"""Publishing a run's files exactly once, however often and wherever the job is killed.

Under the output path, beside the table's own files:

    _staging/RUN/ATTEMPT/…      what an attempt has written; readers ignore names that begin with "_"
    _millstream/RUN.json        the manifest: offsets, rows, and each file's staged and final name
    date=…/RUN-part-….parquet   the table

An attempt writes its files to a folder of its own, checks them, and commits by creating the manifest: there
before and after is nothing between, since it is written aside and renamed. From then on the run's content is
decided, and only that attempt's files count. Each file is then renamed to its final name, which carries the
run; a file that is no longer staged has been renamed before. When all are, `_staging/RUN` is removed, and its
absence says that the run is finished. So:

- killed before the manifest: nothing of the attempt is in the table; a retry starts anew
- killed after it: a retry renames what is left, and reads and writes no record
- finished: a retry finds that out and writes nothing

The steps need from a file system only that renaming one file is all or nothing, so they hold on local disks,
HDFS and object stores (where a rename is a copy that appears when complete, and then a delete).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from msgspec import Struct

from millstream_jobs.run import OffsetRange, Run

PARALLEL_RENAMES = 8  # an object store takes a while for each


class PublishError(Exception):
    """What stands in the output path does not allow this run; one line for the user."""


class Files(Protocol):
    """A file system below one root; paths are relative to it, with "/" between. Failures raise OSError."""

    def exists(self, path: str) -> bool: ...
    def list(self, folder: str) -> list[str]:
        """All files below a folder, at any depth, relative to it."""
        ...

    def read(self, path: str) -> bytes: ...
    def create(self, path: str, content: bytes) -> None:
        """All or nothing; FileExistsError when the file is there."""
        ...

    def make_folder(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> bool:
        """False when there is no such source, or the target is there."""
        ...

    def delete(self, path: str) -> None:
        """A file, or a folder and all below; nothing when it is not there."""
        ...


class StagedFile(Struct, frozen=True):
    staged: str
    final: str


class Manifest(Struct, frozen=True, rename="camel"):
    """A committed run."""

    run: str
    attempt: str
    offsets: tuple[OffsetRange, ...]
    rows: int
    corrupt_records: int
    files: tuple[StagedFile, ...]


def manifest_path(run: str) -> str:
    return f"_millstream/{run}.json"


def staging_path(run: str) -> str:
    return f"_staging/{run}"


def find_manifest(files: Files, run: Run) -> Manifest | None:
    """The run's manifest, if an attempt has committed one; PublishError when it is of another run."""
    path = manifest_path(run.name)
    if not files.exists(path):
        return None
    try:
        manifest = msgspec.json.decode(files.read(path), type=Manifest)
    except msgspec.DecodeError as error:
        raise PublishError(f"output.path: {path} there is no manifest of a run: {error}") from None
    if manifest.offsets != run.offsets:
        raise PublishError(
            f"output.path: a run named {run.name} is published there with other offsets"
            f" ({_first_difference(manifest.offsets, run.offsets)}): take another name or another path"
        )
    return manifest


def commit(files: Files, run: Run, attempt: str, rows: int, corrupt_records: int) -> Manifest:
    """Make an attempt's files the run's content; when another attempt was first, its manifest is the one."""
    staged = f"{staging_path(run.name)}/{attempt}"
    names = sorted(name for name in files.list(staged) if not name.rpartition("/")[2].startswith(("_", ".")))
    manifest = Manifest(
        run=run.name,
        attempt=attempt,
        offsets=run.offsets,
        rows=rows,
        corrupt_records=corrupt_records,
        files=tuple(StagedFile(name, _final(run.name, name)) for name in names),
    )
    try:
        files.create(manifest_path(run.name), msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    except FileExistsError:
        first = find_manifest(files, run)
        assert first is not None
        return first
    return manifest


def finish(files: Files, manifest: Manifest) -> bool:
    """Rename what is not renamed yet; False when there was nothing left to do."""
    staging = staging_path(manifest.run)
    if not files.exists(staging):
        return False
    folders = {file.final.rpartition("/")[0] for file in manifest.files}

    def publish(file: StagedFile) -> None:
        source = f"{staging}/{manifest.attempt}/{file.staged}"
        if not files.rename(source, file.final) and not files.exists(file.final):
            raise PublishError(
                f"output.path: {file.final} is neither staged nor published:"
                f" somebody else removed {source}; remove {manifest_path(manifest.run)} to load the run again"
            )

    with ThreadPoolExecutor(PARALLEL_RENAMES) as pool:
        list(pool.map(files.make_folder, sorted(folders)))
        list(pool.map(publish, manifest.files))
    files.delete(staging)
    return True


def _final(run: str, staged: str) -> str:
    folder, slash, name = staged.rpartition("/")
    return f"{folder}{slash}{run}-{name}"


def _first_difference(published: Sequence[OffsetRange], wanted: Sequence[OffsetRange]) -> str:
    for here, there in zip(published, wanted, strict=False):
        if here != there:
            return f"{here}, here {there}"
    return f"{len(published)} ranges, here {len(wanted)}"
