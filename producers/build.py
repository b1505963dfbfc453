"""Compiles this package in place: `python -m producers.build`; `--clean` removes that."""

import sys

from producers.compiled import GROUP
from topics.compiling import main

if __name__ == "__main__":
    sys.exit(main(GROUP, sys.argv[1:]))
