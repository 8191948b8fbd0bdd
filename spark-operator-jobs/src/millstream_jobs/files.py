"""The files below an output path, as the driver sees them: on a POSIX file system, or in a bucket of S3.

Publication relies on `create`: of any number of drivers that create one file at the same time, one succeeds. On POSIX
that is `link(2)`; in S3 a PUT with `If-None-Match: *`. Paths are relative to the root, with "/" between names. Failures
raise OSError, in one line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from millstream_jobs.run import S3, Output, in_s3

# Give a failing store half a minute and a silent one a minute, then raise an error: the runner of the job retries.
RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
TIMEOUTS: Any = {"timeout": "60s", "connect_timeout": "5s"}
REFUSED = "403 Forbidden"
CHECK = (
    "the store refuses the credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of the Secret that"
    " output.s3.credentialsSecret names, and their rights"
)


class Files(Protocol):
    """A file system below one root."""

    def exists(self, path: str) -> bool: ...
    def list(self, folder: str) -> list[str]:
        """All files below a folder, at any depth, relative to it; none if it does not exist."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The same, with their sizes in bytes."""
        ...

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def create(self, path: str, content: bytes) -> None:
        """Create a file atomically; FileExistsError if it exists, even if another driver has only just created it."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """Create or replace a file atomically."""
        ...

    def make_folder(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> bool:
        """Move a file; False if the source does not exist, or the target does."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        ...


class PosixFiles:
    """A folder of a POSIX file system: local, or mounted by everyone who writes to it."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def list(self, folder: str) -> list[str]:
        top = self.root / folder
        return [
            str(Path(parent, name).relative_to(top)) for parent, _, names in os.walk(top) for name in names
        ]

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: (self.root / folder / name).stat().st_size for name in self.list(folder)}

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def create(self, path: str, content: bytes) -> None:
        with self._aside(path, content) as aside:
            os.link(aside, self.root / path)  # fails if the target exists; a rename would replace it

    def replace(self, path: str, content: bytes) -> None:
        with self._aside(path, content) as aside:
            aside.replace(self.root / path)

    def make_folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def rename(self, source: str, target: str) -> bool:
        try:
            os.link(self.root / source, self.root / target)
        except (FileNotFoundError, FileExistsError):
            return False
        (self.root / source).unlink()
        return True

    def rename_folder(self, source: str, target: str) -> bool:
        """Move a folder that is not empty, in one step; False if the target exists and is not empty."""
        try:
            os.rename(self.root / source, self.root / target)
        except OSError:
            if self.exists(target):
                return False
            raise
        return True

    def delete(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Wait for this lock, and hold it; the kernel frees the lock of a process that dies."""
        with (self.root / path).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _aside(self, path: str, content: bytes) -> Iterator[Path]:
        """A temporary file with this content beside ``path``, synced to disk."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)


class S3Files:
    """A prefix of a bucket; credentials are those of the environment, or of the machine."""

    def __init__(self, root: str, s3: S3) -> None:
        self._root = root
        url = urlsplit(root)
        options: Any = {"virtual_hosted_style_request": not s3.path_style, "conditional_put": "etag"}
        if s3.endpoint:
            options["endpoint"] = s3.endpoint.rstrip("/")
        if s3.region:
            options["region"] = s3.region
        client: Any = {**TIMEOUTS, "allow_http": s3.endpoint.startswith("http://")}
        self._store = S3Store(
            url.netloc, prefix=url.path.strip("/"), client_options=client, retry_config=RETRIES, **options
        )

    def exists(self, path: str) -> bool:
        """For a folder: whether it contains anything."""
        with self._errors():
            try:
                obstore.head(self._store, path)
            except FileNotFoundError:
                return any(
                    True for chunk in obstore.list(self._store, f"{path}/", chunk_size=1) for _ in chunk
                )
        return True

    def list(self, folder: str) -> list[str]:
        return [*self.sizes(folder)]

    def sizes(self, folder: str) -> dict[str, int]:
        with self._errors():
            found = [entry for chunk in obstore.list(self._store, f"{folder}/") for entry in chunk]
        return {entry["path"].removeprefix(f"{folder}/"): entry["size"] for entry in found}

    def read(self, path: str) -> bytes:
        with self._errors():
            return bytes(obstore.get(self._store, path).bytes())

    def create(self, path: str, content: bytes) -> None:
        with self._errors():
            obstore.put(self._store, path, content, mode="create", use_multipart=False)

    def replace(self, path: str, content: bytes) -> None:
        with self._errors():
            obstore.put(self._store, path, content, use_multipart=False)

    def make_folder(self, path: str) -> None:
        """Do nothing: S3 has no folders."""

    def rename(self, source: str, target: str) -> bool:
        """Copy within the store, where the copy appears only when it is complete, then delete."""
        with self._errors():
            try:
                obstore.head(self._store, target)
                return False
            except FileNotFoundError:
                pass
            try:
                obstore.copy(self._store, source, target)
            except FileNotFoundError:
                return False
            obstore.delete(self._store, source)
        return True

    def delete(self, path: str) -> None:
        with self._errors():
            below = [entry["path"] for chunk in obstore.list(self._store, f"{path}/") for entry in chunk]
            for name in [path, *below]:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except AlreadyExistsError as error:
            raise FileExistsError(str(error)) from None
        except BaseError as error:
            # A listing that is refused is a generic error of obstore's.
            is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or REFUSED in str(
                error
            )
            raise OSError(f"{self._root}: {CHECK if is_refused else _first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].strip()


def files_below(output: Output) -> PosixFiles | S3Files:
    """The files of an output."""
    return files_at(output.path, output.s3)


def files_at(path: str, s3: S3) -> PosixFiles | S3Files:
    """The files below a folder, or below ``s3a://BUCKET/FOLDER`` in the store of ``s3``."""
    return S3Files(path, s3) if in_s3(path) else PosixFiles(path)


def one_at_a_time(files: Files, lock: str) -> AbstractContextManager[None]:
    """A lock that one process holds at a time, if the files are on a file system; S3 has no locks."""
    return files.locked(lock) if isinstance(files, PosixFiles) else contextlib.nullcontext()
