"""Each hazard has a test that names it.

A hazard is a way in which changes were lost or wrong in silence (A), a stop that need not be (B),
a silence or an unclear message (C), or a fault that no test noticed (D). A test that shows one
begins its docstring with the hazard's id: `A5: ...`.
"""

import ast
import re

from tests.repository import python_files

FINDINGS = {
    "A1": "a crash of the server takes back commits that the log has, and their GTIDs are reused",
    "A2": "a server of another shard is followed, since domain and server id are equal",
    "A3": "a replica that drops what it cannot apply is followed",
    "A4": "acks=all means one disk, since only the settings said three replicas",
    "A5": "switch locks a replica, since it was the primary once",
    "A6": "BEGIN is written although the source has a write behind END",
    "A7": "TRUNCATE of a table called user is taken for an account statement",
    "A8": "a clean verify never expires",
    "A9": "the END of a lost primary counts for the present one",
    "A10": "cancel goes back although readers have hopped",
    "A11": "targets give out numbers that the source gave out before",
    "A12": "a row that moves between shards with skewed clocks vanishes",
    "A13": "after a split a row is there twice, or a deleted one is still there",
    "A14": "TRUNCATE, DROP and RENAME have no effect in state and replay",
    "A15": "absent and invalid values look like NULL in typed columns",
    "A16": "a restart behind a hop without marks repeats changes unmarked",
    "A17": "numbers and times of starts are taken for other units or zones",
    "A18": "statements with passwords are logged",
    "A19": "rows that statements move without row events go unnoticed",
    "B1": "rows before a logged ROLLBACK stop the shard",
    "B2": "a DDL statement with bytes that are no UTF-8 stops the shard",
    "B3": "there is no way past one bad transaction",
    "B4": "a backlog of filtered rows is never committed",
    "B5": "DROP and CREATE of a table that a filter names stops the shard",
    "B6": "a large XA format id is taken for damage",
    "B7": "many table ids in one binlog file are taken for damage",
    "B8": "a copied row that cannot be decoded stops the shard",
    "B9": "a Spark query with availableNow never ends",
    "B10": "a batch read over a declared reshard hangs",
    "B11": "a Spark query with once plans for ever",
    "B12": "a change log of a part of a shard stops with a conflict",
    "B13": "change log and checkpoint do not work on object stores",
    "B14": "a reader waits for a BEGIN that is gone",
    "B15": "an ALTER ends a Spark query, whose columns are those of its start",
    "B16": "triggers on a table end a switch between BEGIN and its end",
    "B17": "a reshard whose target is lost can neither go on nor back",
    "B18": "sequences, views, routines and trigger orders are not carried, and nobody says so",
    "B19": "rows of unsharded databases after END stop the source's producer",
    "B20": "prepared transactions and powerful accounts are found late",
    "B21": "two producers of a shard take turns for ever",
    "B22": "producers that start at once on an empty cluster fail",
    "B24": "MariaDB's UUID and INET columns are logged as bytes, or stop the shard one by one",
    "B25": "a producer that starts while a server is away ends",
    "C1": "a silent shard looks like an empty stream",
    "C2": "missing topics and brokers are reported by a client's code",
    "C3": "preflight does not list everything at once",
    "C4": "starts have different words in different commands",
    "C5": "the commands after `local up` do not find its settings",
    "C6": "status lines have no time and come every second",
    "C7": "examples of the documentation do not run",
    "C8": "the states of a reshard do not say what to do next",
    "C9": "applications are not told of a new shard map",
    "C10": "the demo cannot be run on MariaDB",
    "D1": "tests of starts by time",
    "D2": "tests of commits to Delta tables",
    "D3": "tests of how a reshard ends",
    "D4": "tests of diverged MariaDB replicas",
    "D5": "tests of the row limits of batches",
    "D6": "tests of hops",
    "D7": "tests of conditions of filters",
    "D8": "tests of the first point of an empty log",
    "D9": "tests of the bound of commit times",
    "D10": "tests of limits in numbers",
    "D11": "tests of tokens of later versions",
}

_LABELS = re.compile(r"((?:[A-D]\d+|F\d\d)(?:, (?:[A-D]\d+|F\d\d))*): ")
_LABEL = re.compile(r"[A-D]\d+")


def named_by_tests() -> set[str]:
    """The findings that the docstrings of tests begin with."""
    found: set[str] = set()
    for path in python_files("tests"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                labels = _LABELS.match(ast.get_docstring(node) or "")
                found |= set(_LABEL.findall(labels[1])) if labels else set()
    return found


def test_each_finding_has_a_test() -> None:
    """No finding is without a test that names it, and no test names one that is not listed."""
    assert named_by_tests() == FINDINGS.keys()
