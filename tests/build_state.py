"""Pytest plugin: refuse to test compiled modules that do not match their sources."""

import pytest

import setup


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Stop before anything is imported: compiled modules take precedence over edited sources."""
    if setup.compiled_in_place() and not setup.is_compiled_current():
        raise pytest.UsageError(
            "the compiled modules do not match their sources: run `make build`, "
            f"or `{setup.PURE_PYTHON_VARIABLE}=1 make build` to work on plain Python"
        )


def pytest_report_header() -> str:
    """Say which form is tested."""
    form = "compiled" if setup.compiled_in_place() else "plain Python"
    return f"shardstream: {form}"
