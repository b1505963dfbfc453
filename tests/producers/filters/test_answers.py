"""The rules' answers to conditions, without a server; another test asks the servers."""

import pytest

from producers.filters.errors import RuleError
from producers.filters.where import compile_where
from producers.filters.where_syntax import parse_where
from tests.producers.filters.answers import ALL, Answers


@pytest.mark.parametrize("answers", ALL, ids=lambda answers: answers.sql_type.split()[0])
def test_rules_answer_as_servers_do(answers: Answers) -> None:
    """D7: each condition keeps the rows that servers find."""
    for where, kept in answers.kept.items():
        compiled = compile_where(parse_where(where), [answers.column], None)
        found = {n for n, (_, raw) in answers.values.items() if compiled.predicate(raw)}

        assert found == kept, where


@pytest.mark.parametrize("answers", ALL, ids=lambda answers: answers.sql_type.split()[0])
def test_what_servers_answer_in_their_own_ways_is_refused(answers: Answers) -> None:
    """D7: comparisons that depend on types, the time zone or the mode are refused."""
    for where in answers.refused:
        with pytest.raises(RuleError, match=r"cannot be evaluated exactly"):
            compile_where(parse_where(where), [answers.column], None)
