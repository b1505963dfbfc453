"""Compiles this package in place: `python -m spark_consumers.build`; `--clean` removes that."""

import sys

from spark_consumers.compiled import GROUP
from topics.compiling import main

if __name__ == "__main__":
    sys.exit(main(GROUP, sys.argv[1:]))
