"""The rules' answers to conditions, without a server; another test asks the servers."""

import pytest

from producers.filters.conditions import RuleError
from producers.filters.where import SourceColumn, compile_where
from producers.filters.where_syntax import parse_where
from tests.producers.filters.answers import ALL, Answers
from topics.records.table_shape import Column, ValueKind


@pytest.mark.parametrize("answers", ALL, ids=lambda answers: answers.sql_type)
def test_rules_answer_as_servers_do(answers: Answers) -> None:
    """D7: each condition keeps the rows that servers find."""
    for where, kept in answers.kept.items():
        compiled = compile_where(parse_where(where), [answers.column], None)
        found = {n for n, (_, raw) in answers.values.items() if compiled.predicate(raw)}

        assert found == kept, where


@pytest.mark.parametrize("answers", ALL, ids=lambda answers: answers.sql_type)
def test_what_servers_answer_in_their_own_ways_is_refused(answers: Answers) -> None:
    """D7: comparisons that depend on types, the time zone or the mode are refused."""
    for where in answers.refused:
        with pytest.raises(RuleError, match=r"cannot be evaluated exactly"):
            compile_where(parse_where(where), [answers.column], None)


def test_latin1_without_padding_has_no_order_either() -> None:
    """D7: MariaDB's NOPAD collation sorts by cp1252's bytes, too."""
    nopad = SourceColumn(Column("v", ValueKind.STRING, "varchar(9)"), "latin1_nopad_bin")

    with pytest.raises(RuleError, match="< by latin1_nopad_bin"):
        compile_where(parse_where("v < 'b'"), [nopad], None)
    found = compile_where(parse_where("v = 'a'"), [nopad], None)
    assert [found.predicate(value) for value in ("a", "a ")] == [True, False]
