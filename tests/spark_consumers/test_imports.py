"""What importing parts of the package loads."""

import subprocess
import sys


def test_parts_that_need_no_spark_do_not_load_it() -> None:
    """Decoding rows, or reading a change log back, does not pay for importing PySpark."""
    program = (
        "import sys, topics.arrow.decoders, sinks.lake.change_log.reading; "
        "sys.exit('pyspark' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], check=False)

    assert done.returncode == 0
