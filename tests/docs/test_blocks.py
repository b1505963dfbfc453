"""How the blocks of a page are found and read."""

import pytest

from tests.docs.blocks import blocks_of

PAGE = """
1. A list item.

   ```shell background until="streaming|idle"
   shardstream produce commerce -80
     --json
   ```

<!--
```sql on=db-a
SELECT 1;
```
-->

```console
$ make build
$ shardstream version \\
    --help
shardstream 0.1.0
```
"""


def test_blocks_are_found_in_order_wherever_they_stand() -> None:
    """A block may be indented or in a comment; its indentation goes, its attributes stay."""
    shell, sql, console = blocks_of(PAGE)

    assert (shell.line, shell.language) == (4, "shell")
    assert shell.text == "shardstream produce commerce -80\n  --json\n"
    assert shell.flags == {"background"}
    assert shell.values == {"until": "streaming|idle"}
    assert (sql.line, sql.values, sql.text) == (10, {"on": "db-a"}, "SELECT 1;\n")
    assert console.language == "console"


def test_console_commands_stand_behind_prompts() -> None:
    """Sample output is not run, nor are commands that set the repository up."""
    console = blocks_of(PAGE)[2]

    assert console.commands() == "shardstream version \\\n    --help"
    assert console.make_targets() == {"build"}


@pytest.mark.parametrize("info", ["", "bash", "shell backgrounds", "toml only=this"])
def test_a_fence_that_is_not_understood_is_refused(info: str) -> None:
    """A block without a language, or with an attribute of no meaning, would silently not run."""
    with pytest.raises(ValueError, match="line 1"):
        blocks_of(f"```{info}\nx\n```\n")
