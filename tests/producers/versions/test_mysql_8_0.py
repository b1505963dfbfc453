"""MySQL 8.0.15, all but the oldest that is supported."""

from tests.producers.versions.checks import (  # noqa: F401 - these are the tests
    test_a_table_is_told_from_others_of_its_name,
    test_case,
    test_copied_rows_are_the_logged_ones,
    test_log_adds_up_to_what_a_select_shows,
    test_server_is_of_its_version_and_suits,
    test_server_refuses_what_is_left_out,
)
from tests.producers.versions.other_servers import OldMysql

SERVER = OldMysql
VERSION = (8, 0, 15)
