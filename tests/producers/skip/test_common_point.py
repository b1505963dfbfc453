"""How far back a log is searched for what a server has, too."""

import pytest

from databases.server_facts import ServerHistory, facts_of
from event_token import Flavor, parse_gtid_set
from producers.servers.choice import ServerView
from producers.servers.server_list import OpenServer
from producers.settings import ServerSettings, ShardProducerSettings
from producers.skip.lost_transactions import CommonPoint, ServerCommits, common_point
from topics.kafka.client import ClientConfig

UUID_A = "4c4b4a49-0000-11f0-8000-000000000001"
UUID_B = "4c4b4a49-0000-11f0-8000-000000000002"
NOWHERE = ClientConfig({"bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("flavor", "executed", "part"),
    [(Flavor.MYSQL, f"{UUID_B}:1-5", f"{UUID_A}:1-5"), (Flavor.MARIADB, "1-1-5", "0-1-5")],
)
def test_a_part_of_which_the_server_has_nothing_is_not_searched_for(
    flavor: Flavor, executed: str, part: str
) -> None:
    """B3: the answer is known before any broker is asked; the log may have a billion records."""
    place = ServerSettings("db-a", 3306, "u", "p")
    history = ServerHistory(parse_gtid_set(executed, flavor), parse_gtid_set("", flavor))
    view = ServerView(place.name, is_replica=False, own="1", history=history)
    settings = ShardProducerSettings(
        keyspace="shop", shard="-", flavor=flavor, servers=(place,), kafka=NOWHERE
    )

    commits = ServerCommits(OpenServer(place, settings.shard_topics, facts_of(flavor), None), view)
    found = common_point(settings, parse_gtid_set(part, flavor), commits)

    assert found == CommonPoint(None, [], [])
