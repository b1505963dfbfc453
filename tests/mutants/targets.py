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
        ("producers/start/choose_start.py",), ("tests/producers/start/test_resume_point.py",)
    ),
    "sink_resume": Target(
        ("sinks/resume.py",),
        ("tests/sinks/test_resume.py",),
    ),
    "server_choice": Target(
        ("producers/servers/choice.py",), ("tests/producers/servers/test_choice.py",)
    ),
    "stream_clock": Target(
        ("producers/decoder/stream/transaction.py",),
        ("tests/producers/decoder/test_stream_clock.py",),
    ),
    "filters": Target(
        tuple(
            f"producers/filters/{name}.py"
            for name in ("binding", "conditions", "rules", "where", "where_syntax")
        ),
        ("tests/producers/filters",),
    ),
    "delta_commit": Target(
        ("sinks/lake/change_log/delta_commit.py",),
        ("tests/sinks/lake/change_log/test_delta_commit.py",),
    ),
}
