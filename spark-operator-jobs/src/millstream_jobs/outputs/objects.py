"""Publishing a run's objects to a plain table in S3, exactly once, however often and wherever the job is killed.

Under the output path, beside the table's own objects (layout: see `parquet`):

    _staging/RUN/ATTEMPT/…           an attempt's objects; readers ignore names that begin with "_"
    _millstream/RUN.json             the manifest: offsets, rows, and each object's staged and final name

An attempt writes its objects under its own prefix, checks them, and commits by creating the manifest, which the
store does for one driver only. From then on the run's content is decided, and only that attempt's objects count.
Each is then moved to its final name; one that is no longer staged was moved before. When all are moved,
`_staging/RUN` is removed, and its absence shows that the run is finished. So:

- killed before the manifest: nothing of the attempt is in the table; a retry starts again
- killed after it: a retry moves the remaining objects, and reads and writes no record
- finished: a retry notices that and writes nothing
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct

from millstream_jobs.files import Files
from millstream_jobs.outputs.output import Fenced, OutputError, check_offsets, is_data
from millstream_jobs.run import OffsetRange, Run

PARALLEL_RENAMES = 8  # each takes a while in an object store


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
    files: tuple[StagedFile, ...] = ()
    fenced_by: str = ""
    """The later run that has fenced this one, which has no rows then."""


def manifest_path(run: str) -> str:
    return f"_millstream/{run}.json"


def staging_path(run: str) -> str:
    return f"_staging/{run}"


def final_folder(run: str) -> str:
    return f"load_run={run}"


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def read_manifest(files: Files, path: str) -> Manifest | None:
    """The manifest at a path, if there is one; OutputError if it is not a manifest."""
    if not files.exists(path):
        return None
    try:
        return msgspec.json.decode(files.read(path), type=Manifest)
    except msgspec.DecodeError as error:
        raise OutputError(f"output.path: {path} there is no manifest of a run: {error}") from None


def manifest_of(files: Files, path: str, run: Run) -> Manifest | None:
    """The run's manifest at a path, if an attempt has committed one; OutputError if it belongs to another run."""
    manifest = read_manifest(files, path)
    if manifest is not None:
        if manifest.fenced_by:
            raise Fenced(run.name, manifest.fenced_by)
        check_offsets(manifest.offsets, run)
    return manifest


def find_manifest(files: Files, run: Run) -> Manifest | None:
    return manifest_of(files, manifest_path(run.name), run)


def fence(files: Files, run: str, attempt: str, by: str) -> None:
    """Take the run's name, unless an attempt has committed."""
    with contextlib.suppress(FileExistsError):
        files.create(manifest_path(run), encode(fence_of(run, attempt, by)))


def fence_of(run: str, attempt: str, by: str) -> Manifest:
    """Without offsets, so that a driver of an older release takes it for another run's."""
    return Manifest(run, attempt, (), 0, 0, fenced_by=by)


def commit(files: Files, run: Run, attempt: str, rows: int, corrupt_records: int) -> Manifest:
    """Commit an attempt's files as the run's content; if another attempt was first, returns its manifest."""
    staged = f"{staging_path(run.name)}/{attempt}"
    names = sorted(filter(is_data, files.list(staged)))
    manifest = Manifest(
        run=run.name,
        attempt=attempt,
        offsets=run.offsets,
        rows=rows,
        corrupt_records=corrupt_records,
        files=tuple(StagedFile(name, f"{final_folder(run.name)}/{name}") for name in names),
    )
    try:
        files.create(manifest_path(run.name), encode(manifest))
    except FileExistsError:
        first = find_manifest(files, run)
        assert first is not None
        return first
    return manifest


def finish(files: Files, manifest: Manifest) -> bool:
    """Rename the remaining objects; False if nothing was left to do."""
    staging = staging_path(manifest.run)
    if not files.exists(staging):
        return False
    folders = {file.final.rpartition("/")[0] for file in manifest.files}

    def publish(file: StagedFile) -> None:
        source = f"{staging}/{manifest.attempt}/{file.staged}"
        if not files.rename(source, file.final) and not files.exists(file.final):
            raise OutputError(
                f"output.path: {file.final} is neither staged nor published:"
                f" somebody else removed {source}; remove {manifest_path(manifest.run)} to load the run again"
            )

    with ThreadPoolExecutor(PARALLEL_RENAMES) as pool:
        list(pool.map(files.make_folder, sorted(folders)))
        list(pool.map(publish, manifest.files))
    files.delete(staging)
    return True
