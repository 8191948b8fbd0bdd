"""``make faults FAULTS="--seconds 600 --faults 100 --seed 3"``: break a cluster and report each violation.

With ``loads`` as the first argument, break batch loads instead (`loads`), with ``mirrors`` mirrors (`mirrors`); with
``hostility``, attack a secured cluster (`hostility`); with ``crowd``, open thousands of connections to a broker.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .hostility import crowd
from .hostility import run as hostility
from .isolation import inside, reenter, unshare
from .loads import rounds as loads
from .mirrors import rounds as mirrors
from .options import add_out, kinds_of, parsed
from .plan import Kind
from .run import Options, Run


def main() -> int:
    """Return 0 if every invariant held, 1 if one did not, 2 if the run could not start."""
    if sys.argv[1:2] == ["loads"]:
        return loads.main(sys.argv[2:])
    if sys.argv[1:2] == ["mirrors"]:
        return mirrors.main(sys.argv[2:])
    if sys.argv[1:2] == ["hostility"]:
        return hostility.main(sys.argv[2:])
    if sys.argv[1:2] == ["crowd"]:
        return crowd.main(sys.argv[2:])
    given = arguments()
    if not inside() and (command := unshare()) is not None:
        return reenter(command, sys.argv[1:])
    if shutil.which("java") is None:
        print(
            "faults: ZooKeeper needs Java 17: install it (Debian: openjdk-17-jdk-headless)", file=sys.stderr
        )
        return 2
    out = given.out or Path(tempfile.mkdtemp(prefix="millstream-faults-"))
    kinds = given.kinds or list(Kind)
    options = Options(
        out.resolve(), given.seed, given.faults, given.seconds, given.zookeepers, kinds, given.transactions
    )
    try:
        return 1 if Run(options).go() else 0
    except KeyboardInterrupt:
        print(f"faults: interrupted; nothing was checked; what was seen is in {options.out}", file=sys.stderr)
        return 130


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seconds", type=positive, default=1200, help="the longest that faults go on (1200)")
    parser.add_argument("--faults", type=positive, default=200, help="how many faults (200)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which ones; a new one each time")
    parser.add_argument("--zookeepers", type=int, choices=(1, 3), default=3, help="ZooKeeper's servers (3)")
    parser.add_argument(
        "--kinds", type=kinds_of(Kind), help="only these, by their names: 'kill leader,full disk'"
    )
    parser.add_argument("--transactions", action="store_true", help="no clients but those with transactions")
    add_out(parser)
    return parsed(parser)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
