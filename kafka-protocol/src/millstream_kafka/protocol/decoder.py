"""Generates the functions that read a struct in one version: see ``compiler``."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from .compiler import FIXED, FunctionSource, Malformed, TooMany, file_name
from .schema import Decoder, FieldType, MalformedRequest, Struct, TooManyElements


def least_size(kind: str, nested: type[Struct] | None, version: int, flexible: bool) -> int:
    """The smallest size of an array's element."""
    if kind in FIXED:
        return struct.calcsize(">" + FIXED[kind])
    if nested is None:
        return 1 if flexible else 2 if kind == "string" else 4
    size = 1 if flexible else 0
    for _, wire in nested.FIELDS:
        if wire.in_version(version) and wire.tag is None:
            if wire.is_array:
                size += 1 if flexible else 4
            elif wire.kind == "struct" and wire.nullable_in(version):
                size += 1
            else:
                size += least_size(wire.kind, wire.struct, version, flexible)
    return max(size, 1)


class _DecoderSource(FunctionSource):
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
        """Read the fields of a struct; returns the expression that builds it from them."""
        values: list[str] = []
        tagged: list[tuple[str, FieldType, str]] = []
        for name, wire in nested.FIELDS:
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
            if wire.nullable_in(self.version):
                return self.nullable_struct(wire.struct)
            value = self.struct(wire.struct)
            self.flush()
            return value
        nullable = wire.nullable_in(self.version)
        return self.single(wire.kind, nullable)

    def nullable_struct(self, nested: type[Struct]) -> str:
        """After a byte: negative for null."""
        variable = self.name("v")
        self.fixed("b", variable)
        self.flush()
        with self.block(f"if {variable} < 0:"):
            self.add(f"{variable} = None")
        with self.block("else:"):
            value = self.struct(nested)
            self.flush()
            self.add(f"{variable} = {value}")
        return variable

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
        """Read a length or count; -1 is null in either form. Layout "h" is a string's."""
        variable = self.name("n")
        if not self.flexible:
            self.fixed(layout, variable)
            self.flush()
            return variable
        self.fixed("B", variable)
        self.flush()
        finish = "finish_string_length" if layout == "h" else "finish_varint"
        self.add(f"if {variable} > 127: {variable}, o = {finish}(b, o, {variable})")
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
            self.take_room(count)
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

    def take_room(self, count: str) -> None:
        if self.bounded:
            self.add(f"if (room := room - {count}) < 0: raise too_many({count})")

    def tags(self, tagged: list[tuple[str, FieldType, str]]) -> None:
        count = self.name("n")
        self.fixed("B", count)
        self.flush()
        if not tagged:
            with self.block(f"if {count}:"):
                self.add(f"{count}, o = skip_tags(b, o, {count})")
                self.take_room(count)
            return
        for _, wire, variable in tagged:
            self.add(f"{variable} = {self.default(wire)}")
        with self.block(f"if {count}:"):
            self.add(f"if {count} > 127: {count}, o = finish_tag_count(b, o, {count})")
            self.take_room(count)
            tag, size, stop = self.name("t"), self.name("n"), self.name("e")
            with self.block(f"for _ in range({count}):"):
                self.add(f"{tag}, o = read_varint(b, o)")
                self.add(f"{size}, o = read_varint(b, o)")
                self.add(f"{stop} = o + {size}")
                self.add(f"if {stop} > end: raise bad_length({size}, end - o)")
                for index, (name, wire, variable) in enumerate(tagged):
                    with self.field(name), self.block(f"{'elif' if index else 'if'} {tag} == {wire.tag}:"):
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
    file = file_name("decode", target, version, bound, in_steps)
    source = _DecoderSource(file, version, flexible, "def decode(b, o):", in_steps)
    source.add("end = len(b)")
    source.step()
    if max_elements is not None:
        source.bounded = True
        source.add(f"room = {max_elements}")
    value = source.struct(target)
    source.flush()
    # Bytes after the last field are ignored, as in Kafka: librdkafka's Metadata request for all topics
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
        kind = TooManyElements if isinstance(error, TooMany) else MalformedRequest
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
