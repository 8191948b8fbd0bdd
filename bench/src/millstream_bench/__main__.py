"""``python -m millstream_bench``: see run.py."""

from __future__ import annotations

import sys

from millstream_bench.run import main

sys.exit(main())
