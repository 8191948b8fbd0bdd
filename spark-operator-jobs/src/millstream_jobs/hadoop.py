"""`publish.Files` over Hadoop's FileSystem in Spark's JVM: local disks, HDFS, s3a and whatever Spark can write to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession


class HadoopFiles:
    """The files below ``root``, an absolute path or URI."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._new_path: Any = context._jvm.org.apache.hadoop.fs.Path
        with _os_errors():
            self._root = self._new_path(root)
            self._fs = self._root.getFileSystem(context._jsc.hadoopConfiguration())
            self._root = self._fs.makeQualified(self._root)

    def path(self, path: str) -> Any:
        return self._new_path(self._root, path) if path else self._root

    def exists(self, path: str) -> bool:
        with _os_errors():
            return bool(self._fs.exists(self.path(path)))

    def list(self, folder: str) -> list[str]:
        with _os_errors():
            # Not listFiles: on local disks it starts a process for each file to learn its permissions.
            listed = [
                (status.getPath().getName(), status.isDirectory())
                for status in self._fs.listStatus(self.path(folder))
            ]
        files = [name for name, is_folder in listed if not is_folder]
        for name, is_folder in listed:
            if is_folder:
                files += [f"{name}/{below}" for below in self.list(f"{folder}/{name}".lstrip("/"))]
        return files

    def read(self, path: str) -> bytes:
        with _os_errors():
            stream = self._fs.open(self.path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def create(self, path: str, content: bytes) -> None:
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/.{name}.{uuid.uuid4().hex}"
        with _os_errors():
            stream = self._fs.create(self.path(aside), False)
            stream.write(bytearray(content))
            stream.close()
        if not self.rename(aside, path):
            self.delete(aside)
            raise FileExistsError(path)

    def make_folder(self, path: str) -> None:
        with _os_errors():
            if not self._fs.mkdirs(self.path(path)):
                raise OSError(f"cannot create the folder {self.path(path).toString()}")

    def rename(self, source: str, target: str) -> bool:
        with _os_errors():
            # Local disks would overwrite the target; a missing source is false on some, an error on others.
            if self._fs.exists(self.path(target)) or not self._fs.exists(self.path(source)):
                return False
            return bool(self._fs.rename(self.path(source), self.path(target)))

    def delete(self, path: str) -> None:
        with _os_errors():
            self._fs.delete(self.path(path), True)


def root_cause(error: BaseException) -> str:
    """What went wrong at the bottom of a failure in the JVM, in one line."""
    cause: Any = None
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
    elif isinstance(error, CapturedException):
        cause = error._origin
    if cause is None:
        return _one_line(str(error)) or type(error).__name__
    while cause.getCause() is not None:
        cause = cause.getCause()
    kind = cause.getClass().getSimpleName()
    return f"{kind}: {_one_line(cause.getMessage() or '')}".removesuffix(": ")


def _one_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


@contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise OSError(root_cause(error)) from None
