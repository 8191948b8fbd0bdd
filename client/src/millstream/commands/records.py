"""`millstream produce` and `millstream consume`: a line is a record."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, BinaryIO, Literal

import click

from millstream import streams
from millstream.errors import BadInput, Interrupted
from millstream.interrupts import Interrupts
from millstream.options import GROUP, TOPIC, Settings, Whole, common
from millstream.output import tell
from millstream.records import FLUSH_TIMEOUT_S, Codec, Record, consume, produce
from millstream.words import count

ESCAPES = {r"\t": "\t", r"\n": "\n", r"\0": "\0", r"\\": "\\"}


@click.command("produce")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option(
    "--file", "-f", "source", type=click.File("rb"), default="-", help="File to read (default: stdin)."
)
@click.option("--key-separator", metavar="TEXT", help=r"Text between key and value in a line, such as '\t'.")
@click.option(
    "--codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none", show_default=True,
    help="Compression of the records.",
)  # fmt: skip
@click.option("--partition", type=Whole(0), help="Partition for all records, whatever their keys.")
@common
@click.pass_obj
def produce_command(
    settings: Settings,
    name: str,
    source: BinaryIO,
    key_separator: str | None,
    codec: Codec,
    partition: int | None,
) -> None:
    """Append lines to a topic, one record each.

    A key's partition is that of Kafka's Java clients (murmur2). confluent-kafka, kcat and others on top of librdkafka
    choose another one unless they have partitioner=murmur2_random: of six partitions, JFK is in 1 here, and in 5 there.
    """
    separator = _separator(key_separator)
    interrupts = Interrupts()
    interrupts.install()
    produced = produce(
        settings.cluster,
        name,
        _records(source, separator),
        codec=codec,
        partition=partition,
        interrupts=interrupts,
        waiting=_waiting,
    )
    by_partition = [{"partition": number, "records": count} for number, count in sorted(produced.items())]
    total = sum(produced.values())
    done = {"topic": name, "records": total, "partitions": by_partition}
    tell(settings, done, f"{count(total, 'record')} to {name}")


@click.command("consume")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option(
    "--group", "-g", "group_id", metavar="GROUP", type=GROUP, help="Read as a member of this group."
)
@click.option(
    "--from", "start", metavar="earliest|latest|OFFSET", default="earliest", show_default=True,
    help="Where to start; with a group, where it has no offset. An offset beyond the end is refused without --follow.",
)  # fmt: skip
@click.option("--max", "maximum", type=Whole(1), help="End after this many records.")
@click.option("--follow", "-F", is_flag=True, help="Wait for more records at the end.")
@click.option("--key-separator", metavar="TEXT", help="Print the key too, with this text after it.")
@common
@click.pass_obj
def consume_command(
    settings: Settings,
    name: str,
    group_id: str | None,
    start: str,
    maximum: int | None,
    follow: bool,
    key_separator: str | None,
) -> None:
    """Print the records of a topic, one line each, up to its end."""
    separator = _separator(key_separator)
    begin = _start(start)
    out, read, shown = sys.stdout.buffer, 0, 0
    found = consume(settings.cluster, name, group=group_id, start=begin, maximum=maximum, follow=follow)
    interrupts = Interrupts()
    interrupts.install()  # for SIGTERM, too: a group member leaves, with its offsets committed
    try:
        with closing(found):
            for record in interrupts.each(found):
                read += 1  # before the write, because SIGTERM may come as soon as its reader has it
                out.write(_json_line(record) if settings.output == "json" else _text_line(record, separator))
                if follow or group_id:  # a group commits only printed records
                    out.flush()
                shown = read
        out.flush()
    except KeyboardInterrupt:
        out.flush()
        raise Interrupted(f"interrupted: {count(read, 'record')} read from {name}") from None
    except OSError as error:
        error.add_note(f"{count(shown, 'record')} read from {name}")
        raise


def _waiting(in_flight: int) -> None:
    streams.say(
        f"millstream: interrupted: waiting up to {FLUSH_TIMEOUT_S:.0f} s for {count(in_flight, 'record')} in flight; "
        "press Ctrl-C again to end at once"
    )


def _start(text: str) -> int | Literal["earliest", "latest"]:
    match text:
        case "earliest" | "latest":
            return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise BadInput(f'--from: "{text}" is not allowed', "write earliest, latest or an offset")


def _separator(text: str | None) -> bytes | None:
    if text == "":
        raise BadInput('--key-separator: "" is not allowed', r"write at least one character, such as '\t'")
    return None if text is None else ESCAPES.get(text, text).encode()


def _records(source: Iterable[bytes], separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    for number, line in enumerate(source, start=1):
        line = line.removesuffix(b"\n")
        if separator is None:
            yield None, line
            continue
        key, found, value = line.partition(separator)
        if not found:
            raise BadInput(
                f"line {number:,} has no key separator {separator.decode()!r}",
                f"the {number - 1:,} lines before it are in the topic",
            )
        yield key, value


def _text_line(record: Record, separator: bytes | None) -> bytes:
    value = (record.value or b"") + b"\n"
    return value if separator is None else (record.key or b"") + separator + value


def _json_line(record: Record) -> bytes:
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
    }
    if record.headers:
        shown["headers"] = [{"name": name, **_text("value", value)} for name, value in record.headers]
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, content: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON: text if possible, else base64 under a name that says so."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content).decode()}
