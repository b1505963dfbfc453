"""The modules that read the records of shard logs, which are compiled.

Import this before the first of them: it decides what their import gives.
"""

from topics.compiled_modules import CompiledModules

_EVENTS = ("cursor", "wire", "values", "events")
# The loop of Spark's tasks calls the same cursor: within one library such a call is a function's,
# across two it would go through the interpreter.
_COLUMNS = (
    "builders",
    "text",
    "arrow_values",
    "json_values",
    "images",
    "key_range",
    "hop_filter",
    "envelope_text",
    "envelope_columns",
    "records",
)

GROUP = CompiledModules(
    package="topics",
    title="record reading modules",
    library="shardstream_records",
    modules=(
        *(f"topics.records.{name}" for name in _EVENTS),
        *(f"spark_consumers.row_columns.{name}" for name in _COLUMNS),
    ),
    # numpy's own types are of no use to mypyc, and checking them takes longer than the build.
    mypy_flags=("--follow-imports=silent",),
)

COMPILED = GROUP.is_loaded
