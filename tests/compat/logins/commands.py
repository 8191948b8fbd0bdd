"""The steps of `millstream_harness.logins` by command-line programs: python commands.py kcat STEPS"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LIMIT_S = 40
SEPARATOR = "\x1e"
"""Of records, as values have none."""


class Failed(Exception):
    pass


def kcat(step: dict[str, Any]) -> list[str]:
    settings = {
        "security.protocol": "SASL_SSL" if step["mechanism"] else "SSL",
        "ssl.ca.location": step["ca"],
    }
    if step["mechanism"]:
        settings |= {
            "sasl.mechanism": step["mechanism"],
            "sasl.username": step["user"],
            "sasl.password": step["password"],
        }
    else:
        settings |= {"ssl.certificate.location": step["certificate"], "ssl.key.location": step["certificate"]}
    options = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
    return ["kcat", "-b", step["bootstrap"], "-D", SEPARATOR, "-m", "10", *options]


def run(command: list[str], values: list[str]) -> list[str]:
    """Feed the values to a program, and return what it printed between separators."""
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as process:
        try:
            fed = "".join(value + SEPARATOR for value in values)
            out, err = process.communicate(fed.encode(), LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"not done in {LIMIT_S} s") from None
    if process.returncode:
        raise Failed(err.decode())
    return out.decode().split(SEPARATOR)[:-1]


def play(step: dict[str, Any]) -> str:
    client = kcat(step)
    write = [*client, "-P", "-t", step["topic"]]
    reading = ("-q", "-f", f"%s{SEPARATOR}", "-X", "auto.offset.reset=earliest", "-e")
    read = [*client, *reading, "-G", step["group"], step["topic"]]
    try:
        match step["action"]:
            case "write":
                run(write, step["values"])
            case "read":
                run(read, [])
            case "round-trip":
                run(write, step["values"])
                found = run(read, [])
                if found != step["values"]:
                    return f"read {found}"
    except Failed as failed:
        return str(failed).replace("\n", " ")
    return "ok"


def main(settings: str) -> None:
    with open(settings) as file:
        steps = json.load(file)
    with ThreadPoolExecutor(len(steps)) as threads:
        running = {step["name"]: threads.submit(play, step) for step in steps}
        for name, result in running.items():
            print("RESULT", name, result.result(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
