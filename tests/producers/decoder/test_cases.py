"""Every hazard in tests/cases, on a real server of each family that has it."""

import pytest

from tests.database_servers import DatabaseFixture
from tests.producers.decoder.case_checks import check_case
from tests.producers.decoder.case_files import Case, all_cases


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_case(case: Case, server_of_case: DatabaseFixture) -> None:
    """The statements of a case give the events, or the error, that the case expects."""
    check_case(case, server_of_case)
