"""Copied rows are the bytes that the stream would have written, for every type there is."""

import pytest

from tests.database_servers import DatabaseFixture
from tests.producers.copy.copied_rows import check_copied_rows, leaves_rows
from tests.producers.decoder.case_files import Case, all_cases


@pytest.mark.parametrize("case", [case for case in all_cases() if leaves_rows(case)], ids=str)
def test_copied_rows_are_the_logged_ones(case: Case, server_of_case: DatabaseFixture) -> None:
    """Copying a case's tables gives, for each row, the key and the image that the log has."""
    check_copied_rows(case, server_of_case)
