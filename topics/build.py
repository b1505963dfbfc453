"""Compiles what reads records in place: `python -m topics.build`; `--clean` removes that."""

import sys

from topics.compiled import GROUP
from topics.compiling import main

if __name__ == "__main__":
    sys.exit(main(GROUP, sys.argv[1:]))
