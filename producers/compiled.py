"""The modules of the decoder and what stands in its loop, which are compiled.

Import this before the first of them: it decides what their import gives.
"""

from topics.compiled_modules import CompiledModules

GROUP = CompiledModules(
    package="producers",
    title="decoder modules",
    library="shardstream_decoder",
    modules=(
        "event_token.running_set",
        "producers.decoder.values.wire",
        "producers.decoder.events.checksum",
        "producers.decoder.tables.key_watch",
        "producers.decoder.tables.plan",
        "producers.decoder.values.hidden_values",
        "producers.decoder.values.legacy_charsets",
        "producers.decoder.values.charset",
        "producers.decoder.tables.column_types",
        "producers.decoder.tables.table_map",
        "producers.decoder.values.temporal",
        "producers.decoder.values.decimals",
        "producers.decoder.values.json_binary",
        "producers.decoder.rows.raw_values",
        "producers.decoder.tables.sharding",
        "producers.decoder.rows.record_sink",
        "producers.decoder.rows.row_values",
        "producers.decoder.rows.filtered_rows",
        "producers.decoder.events.query_events",
        "producers.decoder.events.gtid_events",
        "producers.decoder.events.event_types",
        "producers.decoder.events.format_event",
        "producers.decoder.events.internal_tables",
        "producers.decoder.events.mariadb_compression",
        "producers.decoder.events.stream_clock",
        "producers.decoder.tables.table_versions",
        "producers.decoder.events.payload",
        "producers.decoder.events.prepared",
        "producers.decoder.values.json_diff",
        "producers.decoder.rows.partial_rows",
        "producers.decoder.events.transactions",
        "producers.decoder.events.event_stream",
        "producers.decoder.rows.copied_rows",
        "producers.decoder.decoder",
        "producers.copy.binary_rows",
    ),
)

COMPILED = GROUP.is_loaded
