import subprocess
import sys

import pytest

import spark_consumers


def test_every_public_name_is_there() -> None:
    """Each name of `__all__` can be imported from the package, and no other name can."""
    for name in spark_consumers.__all__:
        assert callable(getattr(spark_consumers, name))
    with pytest.raises(AttributeError, match="no attribute sinks"):
        _ = spark_consumers.sinks


def test_the_package_alone_does_not_load_spark() -> None:
    """Decoding rows, or reading a change log back, does not pay for importing PySpark."""
    program = (
        "import sys, spark_consumers.decoding.shard_decoder; from spark_consumers import "
        "replay_changelog; sys.exit('pyspark' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], check=False)

    assert done.returncode == 0
