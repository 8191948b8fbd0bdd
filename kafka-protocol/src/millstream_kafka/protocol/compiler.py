"""The common part of ``decoder`` and ``encoder``, which generate the functions that read and write a struct version.

A message becomes one flat function: nested structs are loops in it, not calls. Runs of fixed-size fields, with the
length or count that follows them, go through one ``struct.Struct``. A decoder for two fields of a Fetch request
looks like this, much shortened::

    def decode(b, o):
        v1, v2, v3, n4 = unpack_iiih(b, o); o += 14
        if not 0 <= n4 <= end - o: raise bad_length(n4, end - o)
        v4 = str(b[o:o + n4], "utf-8"); o += n4

Invariants of every decoder: it reads nothing beyond the buffer; it allocates nothing before it knows that the bytes
are there (it checks a count against the least size of an element, and all counts of a request together
against a maximum, because an element of two bytes becomes an object of a hundred; tagged fields count, too);
anything else raises
MalformedRequest. The failed line of the generated source tells which field it was, so finding it costs nothing while
all is well. Tracebacks and profilers show that source: every function has its own file name, such as
`<encode FetchResponse v12>`, under which `linecache` has it.

Primitive types (https://kafka.apache.org/protocol#protocol_types): big-endian integers; a string or bytes has an
int16 or int32 length before it, -1 for null; in flexible versions lengths and counts are unsigned varints of n + 1,
0 for null, and every struct ends with its tagged fields: a count, then (tag, size, value) each.
"""

from __future__ import annotations

import linecache
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from .schema import Encoded, Struct

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The kinds of fixed size, as ``struct`` formats."""

SMALL_VARINTS: Final = [bytes([n]) for n in range(128)]

MAX_STRING: Final = 32_767
"""Limit of a string in bytes. Older versions have an int16 for it, and Kafka keeps the limit in flexible versions."""
MAX_TAGS: Final = 1000
"""Limit of the tagged fields of one struct, or of a header. No struct of Kafka's has ten."""


class Malformed(Exception):
    """A check of a generated decoder failed; ``_explain`` adds the field."""


# Called by generated code.


def write_varint(value: int) -> bytes:
    """Unsigned varint: seven bits a byte, lowest first, the top bit set on all but the last."""
    if value < 128:
        return SMALL_VARINTS[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(b: memoryview, o: int) -> tuple[int, int]:
    return finish_varint(b, o + 1, b[o])


def finish_varint(b: memoryview, o: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint of at most 32 bits, after its first byte."""
    value = first & 127
    shift = 7
    while first > 127:
        if shift > 28:
            raise Malformed("a varint of more than five bytes")
        first = b[o]
        o += 1
        value |= (first & 127) << shift
        shift += 7
    return value, o


def finish_string_length(b: memoryview, o: int, first: int) -> tuple[int, int]:
    """The rest of a string's length + 1, of more than one byte."""
    length, o = finish_varint(b, o, first)
    if length > MAX_STRING + 1:
        raise Malformed(f"has the length {length - 1}, more than {MAX_STRING}")
    return length, o


def write_string_length(value: int) -> bytes:
    """Of a string's length + 1."""
    if value > MAX_STRING + 1:
        raise struct.error(f"a string of {value - 1} bytes, more than {MAX_STRING}")
    return write_varint(value)


def finish_tag_count(b: memoryview, o: int, first: int) -> tuple[int, int]:
    """The rest of a number of tagged fields, of more than one byte."""
    count, o = finish_varint(b, o, first)
    if count > MAX_TAGS:
        raise Malformed(f"has {count} tagged fields, more than {MAX_TAGS}")
    return count, o


def skip_tags(b: memoryview, o: int, count: int) -> tuple[int, int]:
    """Skip tagged fields, none of which this version knows (KIP-482 requires readers to ignore them).

    Returns their number, and the position behind them.
    """
    if count > 127:
        count, o = finish_tag_count(b, o, count)
    for _ in range(count):
        _, o = read_varint(b, o)
        size, o = read_varint(b, o)
        if size > len(b) - o:
            raise bad_length(size, len(b) - o)
        o += size
    return count, o


def bad_length(length: int, left: int) -> Malformed:
    if length == -1:
        return Malformed("is null, which it must not be")
    if length < 0:
        return Malformed(f"has the length {length}")
    return Malformed(f"has the length {length}, with {left} bytes left")


def bad_count(count: int, left: int) -> Malformed:
    if count < 0:
        return bad_length(count, left)
    return Malformed(f"has {count} elements, with {left} bytes left")


class TooMany(Malformed):
    pass


def too_many(count: int) -> Malformed:
    return TooMany(f"has {count} elements, which makes too many in the message")


_RUNTIME: Final[dict[str, Any]] = {
    "SMALL": SMALL_VARINTS,
    "UUID": uuid.UUID,
    "Encoded": Encoded,
    "bad_count": bad_count,
    "bad_length": bad_length,
    "finish_string_length": finish_string_length,
    "finish_tag_count": finish_tag_count,
    "finish_varint": finish_varint,
    "pack": struct.pack,
    "read_varint": read_varint,
    "skip_tags": skip_tags,
    "string_length": write_string_length,
    "too_many": too_many,
    "unpack_from": struct.unpack_from,
    "varint": write_varint,
}


def file_name(function: str, target: type[Struct], version: int, bound: str, in_steps: bool) -> str:
    return f"<{function} {target.__name__} v{version}{bound}{', in steps' if in_steps else ''}>"


class FunctionSource:
    """Lines of a function as they are written, with each line's field."""

    def __init__(self, file: str, version: int, flexible: bool, head: str, in_steps: bool = False) -> None:
        self.file = file
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        """Whether the function is a generator that yields after each element of an array."""
        self.lines = [head]
        self.about: list[list[tuple[str, int]]] = [[]]
        self.names: dict[str, Any] = dict(_RUNTIME)
        self.depth = 1
        self.path: list[str] = []
        self.run: list[tuple[str, str, str]] = []
        self._number = 0

    def name(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}{self._number}"

    def constant(self, prefix: str, value: object) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.names[name] = value
        return name

    def method(self, layout: str, method: str) -> str:
        """The name of a layout's ``pack`` or ``unpack_from`` in the generated code."""
        name = f"{method}_{layout.replace('?', 't')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + layout), method)
        return name

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)
        self.about.append([(".".join(self.path), 0)])

    def step(self) -> None:
        if self.in_steps:
            self.add("yield")

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def field(self, name: str) -> Iterator[None]:
        self.path.append(name)
        yield
        self.path.pop()

    def fixed(self, layout: str, expression: str) -> None:
        """Postpone a fixed-size value until its run ends."""
        self.run.append((layout, expression, ".".join(self.path)))

    def compile(self, function: str) -> Any:
        source = "\n".join(self.lines)
        linecache.cache[self.file] = len(source), None, source.splitlines(keepends=True), self.file
        exec(compile(source, self.file, "exec"), self.names)
        return self.names[function]

    def field_at(self, trace: TracebackType | None, end: int) -> str:
        """The field of the failed line, from the traceback of a failure in the generated function."""
        while trace is not None and trace.tb_frame.f_code.co_filename != self.file:
            trace = trace.tb_next
        if trace is None:
            return ""
        offset = trace.tb_frame.f_locals.get("o", 0)
        about = self.about[trace.tb_lineno - 1]
        for path, size in about:
            offset += size
            if offset > end:
                return path
        return about[-1][0] if about else ""
