"""Generates the functions that read and write a struct in one version.

A message becomes one flat function: nested structs are loops in it, not calls. Runs of fixed-size fields, with the
length or count that follows them, go through one ``struct.Struct``. What a decoder for two fields of a Fetch request
looks like, much shortened::

    def decode(b, o):
        v1, v2, v3, n4 = unpack_iiih(b, o); o += 14
        if not 0 <= n4 <= end - o: raise bad_length(n4, end - o)
        v4 = str(b[o:o + n4], "utf-8"); o += n4

Invariants of every decoder: nothing is read beyond the buffer; nothing is allocated before the bytes it stands for
are known to be there (a count is checked against the least size of an element, and all counts of a request together
against a maximum, for an element of two bytes becomes an object of a hundred); what is not understood raises
MalformedRequest. Which field it was is found out afterwards, from the line of the generated source that failed, so
that it costs nothing while all is well. Tracebacks and profilers show that source: every function has a file name of
its own, as `<encode FetchResponse v12>`, by which `linecache` has it.

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
from typing import Any, Final, NoReturn

from .schema import (
    Decoder,
    Encoded,
    EncodeError,
    Encoder,
    FieldType,
    MalformedRequest,
    Struct,
    TooManyElements,
    fields_of,
)

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}
"""The kinds of a fixed size, as ``struct`` formats."""

SMALL_VARINTS: Final = [bytes([n]) for n in range(128)]


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
    """The rest of an unsigned varint of at most 32 bits of which the first byte has been read."""
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


def skip_tags(b: memoryview, o: int, count: int) -> int:
    """Step over tagged fields, none of which this version knows (KIP-482: they are to be ignored)."""
    if count > 127:
        count, o = finish_varint(b, o, count)
    for _ in range(count):
        _, o = read_varint(b, o)
        size, o = read_varint(b, o)
        if size > len(b) - o:
            raise bad_length(size, len(b) - o)
        o += size
    return o


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


class _TooMany(Malformed):
    pass


def too_many(count: int) -> Malformed:
    return _TooMany(f"has {count} elements, which makes too many in the message")


_RUNTIME: Final[dict[str, Any]] = {
    "SMALL": SMALL_VARINTS,
    "UUID": uuid.UUID,
    "Encoded": Encoded,
    "bad_count": bad_count,
    "bad_length": bad_length,
    "finish_varint": finish_varint,
    "pack": struct.pack,
    "read_varint": read_varint,
    "skip_tags": skip_tags,
    "too_many": too_many,
    "unpack_from": struct.unpack_from,
    "varint": write_varint,
}


def least_size(kind: str, nested: type[Struct] | None, version: int, flexible: bool) -> int:
    """The fewest bytes that an element of an array can take."""
    if kind in FIXED:
        return struct.calcsize(">" + FIXED[kind])
    if nested is None:
        return 1 if flexible else 2 if kind == "string" else 4
    size = 1 if flexible else 0
    for _, wire in fields_of(nested):
        if wire.in_version(version) and wire.tag is None:
            if wire.is_array:
                size += 1 if flexible else 4
            else:
                size += least_size(wire.kind, wire.struct, version, flexible)
    return max(size, 1)


def _file(function: str, target: type[Struct], version: int, bound: str, in_steps: bool) -> str:
    return f"<{function} {target.__name__} v{version}{bound}{', in steps' if in_steps else ''}>"


class _Source:
    """Lines of a function as they are written, with the field that each is about."""

    def __init__(self, file: str, version: int, flexible: bool, head: str, in_steps: bool = False) -> None:
        self.file = file
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        """Whether the function is a generator, which yields after each element of an array."""
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
        """``pack`` or ``unpack_from`` of a layout, as a name in the generated code."""
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
        """Put off a fixed-size value until the run that it is in ends."""
        self.run.append((layout, expression, ".".join(self.path)))

    def compile(self, function: str) -> Any:
        source = "\n".join(self.lines)
        linecache.cache[self.file] = len(source), None, source.splitlines(keepends=True), self.file
        exec(compile(source, self.file, "exec"), self.names)
        return self.names[function]

    def field_at(self, trace: TracebackType | None, end: int) -> str:
        """The field that the failed line is about, from the traceback of a failure in the generated function."""
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


# --- decoding ---


class _DecoderSource(_Source):
    bounded = False

    def flush(self) -> None:
        """Read the run of fixed-size values."""
        if not self.run:
            return
        layout = "".join(part for part, _, _ in self.run)
        variables = [variable for _, variable, _ in self.run]
        if layout == "B":
            self.add(f"{variables[0]} = b[o]")
        else:
            target = ", ".join(variables) + ("," if len(variables) == 1 else "")
            self.add(f"{target} = {self.method(layout, 'unpack_from')}(b, o)")
        self.about[-1] = [(path, struct.calcsize(">" + part)) for part, _, path in self.run]
        self.add(f"o += {struct.calcsize('>' + layout)}")
        for part, variable, path in self.run:
            if part == "16s":
                self.add(f"{variable} = UUID(bytes={variable})")
                self.about[-1] = [(path, 0)]
        self.run.clear()

    def struct(self, nested: type[Struct]) -> str:
        """Read the fields of a struct; returns the expression that makes it of them."""
        values: list[str] = []
        tagged: list[tuple[str, FieldType, str]] = []
        for name, wire in fields_of(nested):
            if not wire.in_version(self.version):
                values.append(self.default(wire))
            elif wire.tag is not None:
                variable = self.name("v")
                values.append(variable)
                tagged.append((name, wire, variable))
            else:
                with self.field(name):
                    values.append(self.value(wire))
        if self.flexible:
            self.tags(tagged)
        return f"{self.constant('T', nested)}({', '.join(values)})"

    def default(self, wire: FieldType) -> str:
        if isinstance(wire.default, list):
            return "[]"
        if wire.kind == "uuid":
            return self.constant("D", wire.default)
        return repr(wire.default)

    def value(self, wire: FieldType) -> str:
        if wire.is_array:
            return self.array(wire)
        if wire.kind == "struct":
            assert wire.struct is not None
            value = self.struct(wire.struct)
            self.flush()
            return value
        nullable = wire.nullable_in(self.version)
        return self.single(wire.kind, nullable)

    def single(self, kind: str, nullable: bool) -> str:
        variable = self.name("v")
        if kind in FIXED:
            self.fixed(FIXED[kind], variable)
            return variable
        length = self.length("h" if kind == "string" else "i")
        limit = f"{length} > end - o" if nullable else f"not 0 <= {length} <= end - o"

        def read() -> None:
            self.add(f"if {limit}: raise bad_length({length}, end - o)")
            content = f"b[o:o + {length}]"
            self.add(f"{variable} = " + (f"str({content}, 'utf-8')" if kind == "string" else content))
            self.add(f"o += {length}")

        if nullable:
            with self.block(f"if {length} >= 0:"):
                read()
            self.null(variable, length)
        else:
            read()
        return variable

    def null(self, variable: str, length: str) -> None:
        with self.block(f"elif {length} == -1:"):
            self.add(f"{variable} = None")
        with self.block("else:"):
            self.add(f"raise bad_length({length}, end - o)")

    def length(self, layout: str) -> str:
        """Read a length or count; -1 is null in either form."""
        variable = self.name("n")
        if not self.flexible:
            self.fixed(layout, variable)
            self.flush()
            return variable
        self.fixed("B", variable)
        self.flush()
        self.add(f"if {variable} > 127: {variable}, o = finish_varint(b, o, {variable})")
        self.add(f"{variable} -= 1")
        return variable

    def array(self, wire: FieldType) -> str:
        nullable = wire.nullable_in(self.version)
        count = self.length("i")
        variable = self.name("v")
        least = least_size(wire.kind, wire.struct, self.version, self.flexible)
        taken = count if least == 1 else f"{count} * {least}"

        def read() -> None:
            limit = f"{taken} > end - o" if nullable else f"not 0 <= {taken} <= end - o"
            self.add(f"if {limit}: raise bad_count({count}, end - o)")
            if self.bounded:
                self.add(f"if (room := room - {count}) < 0: raise too_many({count})")
            if wire.kind in FIXED and wire.kind != "uuid":
                self.add(f"{variable} = list(unpack_from(f'>{{{count}}}{FIXED[wire.kind]}', b, o))")
                self.add(f"o += {taken}")
                return
            self.add(f"{variable} = []")
            with self.block(f"for _ in range({count}):"):
                element = self.struct(wire.struct) if wire.struct else self.single(wire.kind, False)
                self.flush()
                self.add(f"{variable}.append({element})")
                self.step()

        if nullable:
            with self.block(f"if {count} >= 0:"):
                read()
            self.null(variable, count)
        else:
            read()
        return variable

    def tags(self, tagged: list[tuple[str, FieldType, str]]) -> None:
        count = self.name("n")
        self.fixed("B", count)
        self.flush()
        if not tagged:
            self.add(f"if {count}: o = skip_tags(b, o, {count})")
            return
        for _, wire, variable in tagged:
            self.add(f"{variable} = {self.default(wire)}")
        with self.block(f"if {count}:"):
            self.add(f"if {count} > 127: {count}, o = finish_varint(b, o, {count})")
            tag, size, stop = self.name("t"), self.name("n"), self.name("e")
            with self.block(f"for _ in range({count}):"):
                self.add(f"{tag}, o = read_varint(b, o)")
                self.add(f"{size}, o = read_varint(b, o)")
                self.add(f"{stop} = o + {size}")
                self.add(f"if {stop} > end: raise bad_length({size}, end - o)")
                for index, (name, wire, variable) in enumerate(tagged):
                    with (
                        self.field(name),
                        self.block(f"{'elif' if index else 'if'} {tag} == {wire.tag}:"),
                    ):
                        value = self.value(wire)
                        self.flush()
                        self.add(f"{variable} = {value}")
                        self.add(f"if o != {stop}: raise bad_length({size}, end - o)")
                with self.block("else:"):
                    self.add(f"o = {stop}")


def compile_decoder(
    target: type[Struct],
    version: int,
    flexible: bool,
    max_elements: int | None = None,
    *,
    in_steps: bool = False,
) -> Decoder:
    """With `in_steps` the decoder is a generator: it yields after each element of an array, and returns the struct."""
    bound = "" if max_elements is None else f", {max_elements} elements at most"
    file = _file("decode", target, version, bound, in_steps)
    source = _DecoderSource(file, version, flexible, "def decode(b, o):", in_steps)
    source.add("end = len(b)")
    source.step()
    if max_elements is not None:
        source.bounded = True
        source.add(f"room = {max_elements}")
    value = source.struct(target)
    source.flush()
    # What stands behind the last field is ignored, as Kafka does: librdkafka's Metadata request for all topics
    # (v9 and later) ends in three bytes that it reserved for a count and did not use.
    source.add(f"return {value}")
    decode = source.compile("decode")
    where = f"{target.__name__} version {version}"

    def explain(error: Exception, end: int) -> NoReturn:
        field = source.field_at(error.__traceback__, end)
        if isinstance(error, UnicodeDecodeError):
            problem = f"is not UTF-8 ({error.reason} at byte {error.start})"
        elif isinstance(error, Malformed):
            problem = str(error)
        else:
            problem = "is cut off"
        kind = TooManyElements if isinstance(error, _TooMany) else MalformedRequest
        raise kind(f"{where}: {field or 'the message'} {problem}") from None

    def steps(buf: memoryview, offset: int) -> Any:
        try:
            return (yield from decode(buf, offset))
        except (struct.error, IndexError, UnicodeDecodeError, Malformed) as error:
            explain(error, len(buf))

    def decoder(buf: memoryview, offset: int) -> Any:
        try:
            return decode(buf, offset)
        except (struct.error, IndexError, UnicodeDecodeError, Malformed) as error:
            explain(error, len(buf))

    return steps if in_steps else decoder


# --- encoding ---


class _EncoderSource(_Source):
    writer = "w"

    def flush(self) -> None:
        """Write the run of fixed-size values."""
        if not self.run:
            return
        layout = "".join(part for part, _, _ in self.run)
        if set(layout) == {"x"}:
            self.add(f"{self.writer}({bytes(len(layout))!r})")
        else:
            values = ", ".join(expression for _, expression, _ in self.run if expression)
            self.add(f"{self.writer}({self.method(layout, 'pack')}({values}))")
        named = [path for part, _, path in self.run if part != "x"]
        self.about[-1] = [(" or ".join(dict.fromkeys(named)), 0)]
        self.run.clear()

    def struct(self, nested: type[Struct], m: str) -> None:
        tagged: list[tuple[str, FieldType]] = []
        for name, wire in fields_of(nested):
            if not wire.in_version(self.version):
                continue
            if wire.tag is not None:
                tagged.append((name, wire))
                continue
            with self.field(name):
                self.value(wire, f"{m}.{name}")
        if self.flexible:
            if tagged:
                self.tags(sorted(tagged, key=lambda item: item[1].tag or 0), m)
            else:
                self.fixed("x", "")

    def value(self, wire: FieldType, expression: str) -> None:
        nullable = wire.nullable_in(self.version)
        if wire.is_array:
            self.array(wire, expression, nullable)
        elif wire.kind == "struct":
            assert wire.struct is not None
            m = self.name("m")
            self.add(f"{m} = {expression}")
            self.struct(wire.struct, m)
        else:
            self.single(wire.kind, expression, nullable)

    def single(self, kind: str, expression: str, nullable: bool) -> None:
        if kind in FIXED:
            self.fixed(FIXED[kind], f"{expression}.bytes" if kind == "uuid" else expression)
            return
        variable, length = self.name("v"), self.name("n")
        extra = " + 1" if self.flexible else ""
        encode = ".encode()" if kind == "string" else ""
        if nullable:
            self.add(f"{variable} = {expression}")
            with self.block(f"if {variable} is None:"):
                self.add(f"{variable} = b''")
                self.add(f"{length} = {0 if self.flexible else -1}")
            with self.block("else:"):
                if encode:
                    self.add(f"{variable} = {variable}{encode}")
                self.add(f"{length} = len({variable}){extra}")
        else:
            self.add(f"{variable} = {expression}{encode}")
            self.add(f"{length} = len({variable}){extra}")
        self.length(length, "h" if kind == "string" else "i")
        self.flush()
        self.add(f"{self.writer}({variable})")

    def length(self, length: str, layout: str) -> None:
        if not self.flexible:
            self.fixed(layout, length)
            return
        self.flush()
        self.add(f"{self.writer}(SMALL[{length}] if {length} < 128 else varint({length}))")

    def array(self, wire: FieldType, expression: str, nullable: bool) -> None:
        variable, count = self.name("v"), self.name("n")
        self.add(f"{variable} = {expression}")
        counted = f"len({variable})" + (" + 1" if self.flexible else "")
        if nullable:
            self.add(f"{count} = {0 if self.flexible else -1} if {variable} is None else {counted}")
        else:
            self.add(f"{count} = {counted}")
        self.length(count, "i")
        self.flush()
        elements = f"{variable} or ()" if nullable else variable
        if wire.kind in FIXED and wire.kind != "uuid":
            with self.block(f"if {variable}:"):
                self.add(f"{self.writer}(pack(f'>{{len({variable})}}{FIXED[wire.kind]}', *{variable}))")
            return
        if wire.encodable:
            with self.block(f"if type({variable}) is Encoded:"):
                self.add(f"{self.writer}({variable}.data)")
        element = self.name("m")
        with self.block(f"for {element} in {elements}:"):
            if wire.struct is None:
                self.single(wire.kind, element, False)
            else:
                self.struct(wire.struct, element)
            self.flush()
            self.step()

    def tags(self, tagged: list[tuple[str, FieldType]], m: str) -> None:
        self.flush()
        present: list[str] = []
        for name, wire in tagged:
            given = self.name("g")
            if wire.default is None:
                self.add(f"{given} = {m}.{name} is not None")
            elif wire.is_array:
                self.add(f"{given} = len({m}.{name}) > 0")
            else:
                self.add(f"{given} = {m}.{name} != {wire.default!r}")
            present.append(given)
        self.add(f"{self.writer}(SMALL[{' + '.join(present)}])")
        for given, (name, wire) in zip(present, tagged, strict=True):
            with self.field(name), self.block(f"if {given}:"):
                outer, out = self.writer, self.name("w")
                self.add(f"p{out} = []; {out} = p{out}.append")
                self.writer = out
                self.value(wire, f"{m}.{name}")
                self.flush()
                self.writer = outer
                self.add(f"p{out} = b''.join(p{out})")
                self.add(f"{outer}(varint({wire.tag})); {outer}(varint(len(p{out}))); {outer}(p{out})")


def compile_encoder(target: type[Struct], version: int, flexible: bool, *, in_steps: bool = False) -> Encoder:
    """With `in_steps` the encoder is a generator: it yields after each element of an array."""
    file = _file("encode", target, version, "", in_steps)
    source = _EncoderSource(file, version, flexible, "def encode(m, parts):", in_steps)
    source.add("w = parts.append")
    source.step()
    source.struct(target, "m")
    source.flush()
    encode = source.compile("encode")

    def explain(error: Exception) -> NoReturn:
        field = source.field_at(error.__traceback__, 1 << 62)
        raise EncodeError(f"{target.__name__} version {version}: {field}: {error}") from error

    def steps(value: Any, parts: list[Any]) -> Any:
        try:
            yield from encode(value, parts)
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            explain(error)

    def encoder(value: Any, parts: list[Any]) -> None:
        try:
            encode(value, parts)
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            explain(error)

    return steps if in_steps else encoder
