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
        "producers.decoder.wire",
        "producers.decoder.checksum",
        "producers.decoder.key_watch",
        "producers.decoder.plan",
        "producers.decoder.hidden_values",
        "producers.decoder.legacy_charsets",
        "producers.decoder.charset",
        "producers.decoder.column_types",
        "producers.decoder.table_map",
        "producers.decoder.temporal",
        "producers.decoder.decimals",
        "producers.decoder.json_binary",
        "producers.decoder.raw_values",
        "producers.decoder.sharding",
        "producers.decoder.records",
        "producers.decoder.row_values",
        "producers.decoder.filtered_rows",
        "producers.decoder.query_events",
        "producers.decoder.gtid_events",
        "producers.decoder.event_types",
        "producers.decoder.format_event",
        "producers.decoder.internal_tables",
        "producers.decoder.mariadb_compression",
        "producers.decoder.stream_clock",
        "producers.decoder.tables",
        "producers.decoder.payload",
        "producers.decoder.prepared",
        "producers.decoder.json_diff",
        "producers.decoder.partial_rows",
        "producers.decoder.transactions",
        "producers.decoder.events",
        "producers.decoder.copied_rows",
        "producers.decoder.decoder",
        "producers.copy.binary_rows",
    ),
)

COMPILED = GROUP.is_loaded
