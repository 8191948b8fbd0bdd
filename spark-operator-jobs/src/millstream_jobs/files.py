"""The files below an output path, as the driver sees them: on a POSIX file system, or in a bucket of S3.

What publication needs of both is `create`: of any number of drivers that create one file at the same time, one
succeeds. On POSIX that is `link(2)`; in S3 a PUT with `If-None-Match: *`. Paths are relative to the root, with "/"
between names. Failures raise OSError, in one line.
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

from millstream_jobs.run import S3, Output

# Half a minute of a store that fails or does not answer, then an error: whoever runs the job tries again.
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
        """All files below a folder, at any depth, relative to it; none when it is not there."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The same with the bytes of each."""
        ...

    def read(self, path: str) -> bytes:
        """FileNotFoundError when it is not there."""
        ...

    def create(self, path: str, content: bytes) -> None:
        """All or nothing; FileExistsError when the file is there, whoever created it a moment before."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """All or nothing, over what is there."""
        ...

    def make_folder(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> bool:
        """Move a file; False when there is no such source, or the target is there."""
        ...

    def delete(self, path: str) -> None:
        """A file, or a folder and all below; nothing when it is not there."""
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
            os.link(aside, self.root / path)  # fails where the target is, which a rename would replace

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
        """Move a folder that is not empty, in one step; False when the target is there and not empty."""
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
        """Wait until no other process has this lock, and have it; the kernel frees the lock of one that dies."""
        with (self.root / path).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _aside(self, path: str, content: bytes) -> Iterator[Path]:
        """A file with this content beside ``path``, on the disk, and gone afterwards."""
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
        """For a folder: whether there is anything below."""
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
        """Nothing: S3 has no folders."""

    def rename(self, source: str, target: str) -> bool:
        """A copy within the store, which appears when it is complete, then a delete."""
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
    return S3Files(output.path, output.s3) if output.in_s3 else PosixFiles(output.path)


def one_at_a_time(files: Files, lock: str) -> AbstractContextManager[None]:
    """A lock that one process has at a time, where the files lie on a file system; S3 has no locks."""
    return files.locked(lock) if isinstance(files, PosixFiles) else contextlib.nullcontext()
