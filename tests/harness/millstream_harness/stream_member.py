"""A member of a group as a process: one stream, and a line for each of its events, with the time.

    python -m millstream_harness.stream_member OUTPUT BOOTSTRAP GROUP TOPIC JSON_OPTIONS

    take PARTITION OFFSET TIME      the stream owns a partition now, and begins there
    message PARTITION OFFSET TIME   returned by the stream
    commit PARTITION OFFSET TIME    committed, the offset of the next message

Times are those of CLOCK_MONOTONIC in nanoseconds, the same for all processes. It commits after every few messages
(option ``commit_every``), unless the options say that the stream commits by itself. SIGTERM closes it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millstream
from millstream.consuming.stream import MessageStream
from millstream.errors import MillstreamError
from millstream.groups import committed_offsets
from millstream_harness.daemon import Daemon

COMMIT_EVERY = 7


def main(output: str, bootstrap: str, group: str, topic: str, options: str) -> None:
    out = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(what: str, partition: int, offset: int, at: int = 0) -> None:
        os.write(out, b"%s %d %d %d\n" % (what.encode(), partition, offset, at or time.monotonic_ns()))

    settings = {"commit": "manual", "start": "earliest", "commit_every": COMMIT_EVERY, **json.loads(options)}
    commit_every = settings.pop("commit_every")
    reported = MessageStream._commit_reported

    def told_of_report(self: MessageStream, error: Any, partitions: Any) -> None:
        reported(self, error, partitions)
        for at in partitions:
            if error is None and at.error is None:
                tell("commit", at.partition, at.offset)

    MessageStream._commit_reported = told_of_report  # type: ignore[method-assign]
    connector = millstream.connect(bootstrap, group=group, **settings)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ((stream,),) = connector.create_message_streams({topic: 1}).values()
    take = stream.take

    def told(partitions: Any) -> None:
        for (_, partition), offset in partitions.items():
            tell("take", partition, offset)
        take(partitions)

    stream.take = told  # type: ignore[method-assign]
    commit = stream._membership.commit

    def told_of_commit(stream: MessageStream, positions: Any, *, wait: bool) -> None:
        commit(stream, positions, wait=wait)
        if wait or "zookeeper" in settings:  # otherwise it is reported
            for (_, partition), offset in positions.items():
                tell("commit", partition, offset)

    stream._membership.commit = told_of_commit  # type: ignore[method-assign]

    def close_when_stopped() -> None:
        stopped.wait()
        connector.close()

    threading.Thread(target=close_when_stopped, daemon=True).start()
    done: dict[int, int] = {}
    count = 0
    while not stopped.is_set():
        try:
            for message in stream:
                done[message.partition] = message.offset + 1
                tell("message", message.partition, message.offset)
                count += 1
                if settings["commit"] == "manual" and count % commit_every == 0:
                    stream.commit(message.position)
                time.sleep(0.002)
        except MillstreamError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    connector.close()


@dataclass(frozen=True, slots=True)
class Event:
    what: str
    partition: int
    offset: int
    at: int
    member: int


class StreamMember(Daemon):
    """The process, and its output lines."""

    name = "a stream member"

    def __init__(
        self, folder: Path, number: int, bootstrap: str, group: str, topic: str, options: dict[str, Any]
    ) -> None:
        super().__init__(folder, f"member-{number}.log")
        self.number = number
        self.pauses: list[int] = []  # number of events at each pause
        self.events_file = folder / f"member-{number}.events"
        self._read: list[Event] = []  # of the first bytes of the file
        self._bytes = 0
        self.command = [
            sys.executable, "-m", "millstream_harness.stream_member",
            str(self.events_file), bootstrap, group, topic, json.dumps(options),
        ]  # fmt: skip

    def start(self) -> StreamMember:
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.launch(self.command, {**os.environ, "PYTHONPATH": os.pathsep.join(path)})
        return self

    def pause(self) -> None:
        super().pause()
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # it writes nothing more
        self.pauses.append(len(self.events()))

    def in_hand(self) -> set[Event]:
        """The message of each pause that it may have had in hand: its first event after waking up.

        It takes more than a millisecond for a message, so a run is one message. Takes may come in another thread.
        """
        found = set()
        for before in self.pauses:
            first = next((event for event in self.events()[before:] if event.what != "take"), None)
            if first is not None and first.what == "message":
                found.add(first)
        return found

    def events(self) -> list[Event]:
        """All events so far; each call parses only what is new."""
        if not self.events_file.exists():
            return []
        with self.events_file.open("rb") as file:
            file.seek(self._bytes)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._bytes += len(whole) + 1
            parts = (line.split() for line in whole.decode().split("\n"))
            self._read += [
                Event(what, int(p), int(offset), int(at), self.number) for what, p, offset, at in parts
            ]
        return [*self._read]


def all_events(members: Iterable[StreamMember]) -> list[Event]:
    return sorted((event for member in members for event in member.events()), key=lambda event: event.at)


def owners(members: Iterable[StreamMember]) -> dict[int, int]:
    """The last owner of each partition: who took it last, or got its last message.

    A response that was held back may name partitions that are others' by then; the member gets no message of them.
    """
    members = list(members)
    in_hand = {event for member in members for event in member.in_hand()}
    return {
        event.partition: event.member
        for event in all_events(members)
        if event.what == "take" or (event.what == "message" and event not in in_hand)
    }


def check(members: Iterable[StreamMember]) -> None:
    """Check for one owner at a time, nothing skipped, and duplicates only since the last commit.

    A member owns a partition from its first message on: see `owners`. One that was paused may finish the message that
    it had in hand.
    """
    members = list(members)
    events = all_events(members)
    in_hand = {event for member in members for event in member.in_hand()}
    owner: dict[int, int] = {}
    taken: set[tuple[int, int]] = set()
    expected: dict[tuple[int, int], int] = {}
    highest: dict[int, int] = {}
    committed: dict[int, int] = {}
    for event in events:
        at = event.partition
        if event.what == "take":
            taken.add((at, event.member))
            expected[at, event.member] = event.offset
            assert event.offset <= highest.get(at, 0), f"messages are skipped: {event}"
            assert event.offset >= committed.get(at, 0), (
                f"messages are handed out that were committed: {event}"
            )
        elif event.what == "message":
            if (at, event.member) in taken:
                taken.remove((at, event.member))
                owner[at] = event.member
            assert event.member == owner[at] or event in in_hand, f"two owners: {event}, and {owner[at]}"
            assert event.offset == expected[at, event.member], f"out of order: {event}"
            expected[at, event.member] = event.offset + 1
            highest[at] = max(highest.get(at, 0), event.offset + 1)
        else:
            committed[at] = max(committed.get(at, 0), event.offset)


def last_commits(cluster: millstream.Cluster, group: str, topic: str) -> dict[int, int]:
    return {
        number: offset
        for (name, number), offset in committed_offsets(cluster, group).items()
        if name == topic
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
