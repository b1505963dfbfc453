"""The modules that make columns of records in Spark's tasks, which are compiled.

Import this before the first of them: it decides what their import gives.
"""

from topics.compiled_modules import CompiledModules

_NAMES = (
    "wire",
    "builders",
    "text",
    "typed",
    "json_values",
    "images",
    "key_range",
    "hop_filter",
    "envelope_text",
    "envelope_columns",
    "records",
)

GROUP = CompiledModules(
    package="spark_consumers",
    title="row column modules",
    library="shardstream_row_columns",
    modules=tuple(f"spark_consumers.row_columns.{name}" for name in _NAMES),
    # numpy's own types are of no use to mypyc, and checking them takes longer than the build.
    mypy_flags=("--follow-imports=silent",),
)

COMPILED = GROUP.is_loaded
