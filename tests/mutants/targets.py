"""The pure cores whose tests are measured, each with its tests that need no servers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Modules (globs below the repository's root) and the tests that should notice a change."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


TARGETS = {
    # Without `compiled`, which says how the package was built.
    "event_token": Target(("event_token/[!c]*.py",), ("tests/event_token",)),
    "reading": Target(
        ("topics/reading/*.py",),
        ("tests/topics/reading", "tests/topics/stream/test_key_filter_and_merge.py"),
    ),
    "switching": Target(
        ("resharding/switch/decision.py",),
        ("tests/resharding/switch/test_decision.py", "tests/resharding/switch/test_steps.py"),
    ),
    "resume": Target(
        ("producers/start/resume_point.py",), ("tests/producers/start/test_resume_point.py",)
    ),
    "sink_resume": Target(
        ("spark_consumers/sink_query/resume.py",),
        ("tests/spark_consumers/sink_query/test_resume.py",),
    ),
    "server_choice": Target(
        ("producers/servers/choice.py",), ("tests/producers/servers/test_choice.py",)
    ),
    "stream_clock": Target(
        ("producers/decoder/stream/stream_clock.py",),
        ("tests/producers/decoder/test_stream_clock.py",),
    ),
    # Without those that ask servers or are told by them: start_check, table_filters.
    "filters": Target(
        tuple(
            f"producers/filters/{name}.py"
            for name in (
                *("binding", "collations", "comparisons", "like", "masks", "ranges", "rules"),
                *("where", "where_syntax"),
            )
        ),
        ("tests/producers/filters",),
    ),
    "delta_commit": Target(
        ("spark_consumers/change_log/delta_commit.py",),
        ("tests/spark_consumers/change_log/test_delta_commit.py",),
    ),
}
