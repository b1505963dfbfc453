"""A SKIP record is written only for servers that belong to the shard."""

import pytest

from databases.server_facts import facts_of
from event_token import Flavor, parse_gtid_set
from producers.errors import WrongServer
from producers.servers import identity
from producers.servers.server_list import OpenServer, ServerList
from producers.settings import ServerSettings
from producers.skip.record_writer import SkipDecision, checked
from topics.names import ShardTopics
from topics.records.skip_record import SkipKind

TOPICS = ShardTopics("commerce", "-80")
POSITION = parse_gtid_set("0-1-99", Flavor.MARIADB)
SERVER = OpenServer(ServerSettings("db-2", 3306, "u", "p"), TOPICS, facts_of(Flavor.MARIADB), None)
SERVERS = ServerList(TOPICS, [SERVER], {})


@pytest.fixture(autouse=True)
def server_with_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers with the identity `theirs`."""
    monkeypatch.setattr(identity, "read_identity", lambda _: "theirs")


def decide() -> SkipDecision:
    """Find nothing that speaks against it: by GTIDs alone another shard's server looks right."""
    return SkipDecision(SkipKind.LOST, "0-1-99", "0-1-99", POSITION, SERVER.name, ())


def test_another_shards_server_is_refused() -> None:
    """The log is not set back to a place of another shard's history."""
    with pytest.raises(WrongServer, match=r"identity ours.* db-2:3306 .* is theirs"):
        checked(SERVERS, "ours", decide)


def test_a_server_without_identity_is_not_said_to_be_of_another_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A2: it may be the right one, which has lost the row."""
    monkeypatch.setattr(identity, "read_identity", lambda _: "")
    with pytest.raises(WrongServer, match="is missing: nothing shows that it belongs to this"):
        checked(SERVERS, "ours", decide)


@pytest.mark.parametrize("known", ["", "theirs"])
def test_a_server_of_the_shard_passes(known: str) -> None:
    """The identity is the log's, or the log has none yet."""
    assert checked(SERVERS, known, decide).position == POSITION
