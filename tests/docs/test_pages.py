"""Every block of README.md, docs/*.md and the examples runs, page by page, on real servers."""

from pathlib import Path

import pytest

from event_token import UsageError
from tests.docs.blocks import blocks_of
from tests.docs.command_syntax import check_commands, check_reshards
from tests.docs.page_run import PageRun
from tests.repository import ROOT, pages

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in pages())
# Their blocks start whole systems.
LONG_PAGES = {"README.md", "docs/caching.md", "docs/operations.md"}


@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.full if page in LONG_PAGES else ()) for page in PAGES],
)
def test_blocks_of_the_page_run(page: str, tmp_path: Path) -> None:
    """C7: commands, programs, statements and settings of a page work in the order of the page."""
    text = (ROOT / page).read_text()
    blocks = blocks_of(text)

    with PageRun(tmp_path, text) as run:
        for block in blocks:
            run.run(block)


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    """A command with another status than the page says, or output that never comes, fails."""
    page = '```shell exit=3\nexit 3\n```\n```shell\nfalse\n```\n```shell until="ready"\ntrue\n```\n'
    expected, failing, silent = blocks_of(page)

    with PageRun(tmp_path, page) as run:
        run.run(expected)
        with pytest.raises(AssertionError, match="line 4"):
            run.run(failing)
        with pytest.raises(AssertionError, match="line 7"):
            run.run(silent)


def test_an_excerpt_of_code_that_has_changed_is_noticed(tmp_path: Path) -> None:
    """A page shows code as it is in the repository."""
    source = Path(__file__).relative_to(ROOT)
    true, changed = blocks_of(
        f"```python from={source}\nfrom pathlib import Path\n```\n"
        f"```python from={source}\nfrom pathlib import PurePath\n\n```\n"
    )

    with PageRun(tmp_path, "") as run:
        run.run(true)
        with pytest.raises(AssertionError, match="line 4"):
            run.run(changed)


def test_a_reshard_that_the_settings_do_not_allow_is_noticed(tmp_path: Path) -> None:
    """A block that is only parsed fits the settings of its page."""
    path = tmp_path / "shardstream.toml"
    servers = '[{host = "db-a", user = "u", password_env = "P"}]'
    shard = f'flavor = "mysql"\nservers = {servers}\n'
    page = f'[kafka]\nbootstrap_servers = "k:9092"\n[keyspaces.shop.shards."-"]\n{shard}'
    line = "shardstream reshard create shop r1 --source - --target -80"
    account = '[keyspaces.shop.reshard]\nuser = "r"\napplication_accounts = ["a@%"]\n'
    account += 'password_env = "P"\n'
    for text, wrong in ((page, r"no \[keyspaces\.shop\.reshard\]"), (page + account, "-80")):
        path.write_text(text)
        with pytest.raises(UsageError, match=wrong):
            check_reshards(line, path)
    path.write_text(f'{page}{account}[keyspaces.shop.targets."-80"]\n{shard}')
    check_reshards(line, path)


@pytest.mark.parametrize("line", ["shardstream tale commerce", "shardstream reshard halt ks r1"])
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    """Blocks that are only parsed name commands that exist."""
    check_commands("shardstream reshard cancel commerce r1  # goes back\nshardstream tail KEYSPACE")

    with pytest.raises(AssertionError, match="no command"):
        check_commands(line)
