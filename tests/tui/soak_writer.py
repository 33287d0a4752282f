"""Writes event lines of a made run: python soak_writer.py FILE RATE SECONDS [RATE SECONDS...]."""

import sys
import time
from itertools import islice
from pathlib import Path

from tests.tui import made_runs

_PER_LOOK = 0.02


def main() -> None:
    """Each pair of rate and seconds, one after the other."""
    path, *pairs = sys.argv[1:]
    lines = made_runs.endless()
    with Path(path).open("a", encoding="utf-8") as file:
        for rate, seconds in zip(pairs[::2], pairs[1::2], strict=True):
            began = time.monotonic()
            written = 0
            while (passed := time.monotonic() - began) < float(seconds):
                due = int(passed * float(rate)) - written
                file.write("".join(islice(lines, due)))
                file.flush()
                written += due
                time.sleep(_PER_LOOK)
            print(rate, written, flush=True)


if __name__ == "__main__":
    main()
