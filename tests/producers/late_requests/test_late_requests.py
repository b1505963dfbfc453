"""What the model of late requests shows: which of them may have been sent twice without harm."""

import pytest

from tests.producers.late_requests.late_requests import LateRequests, Renews, Setting
from tests.producers.state_search import Found, Search

COMMITS = Setting(resends=2)
ABORTS = Setting(resends=2, aborts=1)


@pytest.mark.parametrize("setting", [COMMITS, ABORTS], ids=["commits", "commits and aborts"])
def test_a_new_epoch_after_what_was_sent_twice_keeps_transactions_whole(setting: Setting) -> None:
    """Whatever arrives late, at any moment: each transaction is in the log with its progress."""
    searched = Search(LateRequests(setting, Renews.AFTER_ENDS))

    searched.everything()

    searched.check_ends()


@pytest.mark.parametrize(
    ("renews", "setting", "broken"),
    [
        (Renews.NEVER, COMMITS, "rows without their progress"),
        (Renews.AFTER_COMMITS, ABORTS, "progress without its rows"),
    ],
    ids=["never", "after commits alone"],
)
def test_commits_and_aborts_both_need_a_new_epoch(
    renews: Renews, setting: Setting, broken: str
) -> None:
    """A late commit shows half a transaction; a late abort takes rows from under their progress."""
    with pytest.raises(Found, match=broken):
        Search(LateRequests(setting, renews)).everything()
