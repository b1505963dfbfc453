"""Which server is followed, from GTID sets alone: errant, diverged, purged or behind."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databases.errors import ServerLost, ServerRefused
from databases.server_facts import ServerHistory, before_binlogs, mariadb_executed, mariadb_purged
from event_token import (
    Flavor,
    GtidError,
    GtidSet,
    Halt,
    MariadbGtidSet,
    MysqlGtidSet,
    parse_gtid_set,
)
from event_token.errors import ShardstreamError
from producers.errors import BinlogPurged, ReplicaBehindLog, ServerBehindLog, ServerDiverged
from producers.servers.choice import (
    ServerView,
    asked_for,
    find_faults,
    is_known,
    lacking,
    must_stop,
    none_usable,
)
from producers.servers.watch import LagMeter
from tests.event_token.mariadb_servers import Cluster
from tests.generated import examples
from topics.names import ShardTopics
from topics.progress.record import LastTransaction

TOPICS = ShardTopics("ks", "-")
P = "00000000-0000-0000-0000-00000000000a"
R = "00000000-0000-0000-0000-00000000000b"


def mysql(name: str, executed: str, purged: str = "", *, replica: bool = False) -> ServerView:
    """A MySQL server; `p...` writes with uuid P, others with R."""
    own = P if name.startswith("p") else R
    history = ServerHistory(MysqlGtidSet.parse(executed), MysqlGtidSet.parse(purged))
    return ServerView(name, replica, own, history)


def mariadb(name: str, state: str, purged: str = "", *, replica: bool = False) -> ServerView:
    """A MariaDB server by its gtid_binlog_state, the last entry of a domain being its position."""
    entries = [tuple(map(int, gtid.split("-"))) for gtid in state.split(",")]
    position = {domain: f"{domain}-{server}-{number}" for domain, server, number in entries}
    executed = MariadbGtidSet.of_server(",".join(position.values()), state)
    history = ServerHistory(executed, mariadb_set(purged))
    numbers = {(domain, server): number for domain, server, number in entries}
    return ServerView(name, replica, "1" if name.startswith("p") else "2", history, numbers)


def mariadb_set(text: str) -> GtidSet:
    return parse_gtid_set(text, Flavor.MARIADB)


def faults(position: GtidSet | None, *views: ServerView) -> dict[str, type[ShardstreamError]]:
    """The kinds of what is wrong with the servers, by name."""
    return {name: type(fault) for name, fault in find_faults(TOPICS, position, views).items()}


def at(text: str) -> MysqlGtidSet:
    return MysqlGtidSet.parse(text)


def test_sound_primary_and_replica_can_be_followed() -> None:
    """A replica ahead of the log can be followed although it is behind its primary."""
    primary = mysql("p", f"{P}:1-9")

    assert faults(at(f"{P}:1-5"), mysql("r", f"{P}:1-7", replica=True), primary) == {}
    assert faults(None, mysql("r", f"{P}:1-7", replica=True), primary) == {}


def test_replica_with_errant_transactions_is_refused_by_name() -> None:
    """Transactions the primary never had are named, whoever wrote them, also with an empty log."""
    primary = mysql("p", f"{P}:1-9")
    errant = mysql("r", f"{P}:1-7,{R}:3", replica=True)

    for position in (at(f"{P}:1-5"), None):
        found = find_faults(TOPICS, position, [errant, primary])
        assert list(found) == ["r"]
        assert isinstance(found["r"], ServerDiverged)
        assert f"{R}:3" in str(found["r"])


def test_replica_s_own_writes_count_only_when_confirmed() -> None:
    """Without a primary, another replica or the log can confirm transactions."""
    was_primary = mysql("r", f"{P}:1-7,{R}:1-3", replica=True)
    knows = mysql("q", f"{P}:1-6,{R}:1-3", replica=True)
    knows = ServerView("q", True, "00000000-0000-0000-0000-00000000000c", knows.history)

    assert faults(at(f"{P}:1-5"), was_primary) == {"r": ServerDiverged}
    assert faults(at(f"{P}:1-5"), was_primary, knows) == {}
    assert faults(at(f"{P}:1-5,{R}:1-3"), was_primary) == {}
    assert faults(None, was_primary) == {}


def test_two_primaries_that_both_went_on_stop_the_shard() -> None:
    """An old primary returns with its own writes: neither server is followed."""
    old, new = mysql("p", f"{P}:1-9"), mysql("n", f"{P}:1-8,{R}:1-2")
    views = [old, new]
    found = find_faults(TOPICS, at(f"{P}:1-5"), views)
    stop = must_stop(views, found)

    assert isinstance(stop, ServerDiverged)
    assert f"{P}:9" in str(stop)
    assert faults(at(f"{P}:1-5"), old, mysql("n", f"{P}:1-8")) == {}


def test_primary_behind_the_log_stops_whatever_else_there_is() -> None:
    """After a failover that lost transactions, a replica that still has them is not followed."""
    new, old = mysql("n", f"{P}:1-8"), mysql("r", f"{P}:1-9", replica=True)
    found = find_faults(TOPICS, at(f"{P}:1-9"), [old, new])
    stop = must_stop([old, new], found)

    assert isinstance(stop, ServerBehindLog)
    assert f"{P}:9" in str(stop)


def test_purged_and_lagging_servers_are_passed_over() -> None:
    """Each refused server is named, while a third one can be followed."""
    purged = mysql("a", f"{P}:1-9", f"{P}:1-7", replica=True)
    behind = mysql("b", f"{P}:1-4", replica=True)
    primary = mysql("p", f"{P}:1-9")

    assert faults(at(f"{P}:1-5"), purged, behind, primary) == {
        "a": BinlogPurged,
        "b": ReplicaBehindLog,
    }


def test_mariadb_replica_with_its_own_numbers_is_refused() -> None:
    """An errant transaction is found although the primary's numbers have passed it."""
    primary = mariadb("p", "0-1-15")

    assert faults(mariadb_set("0-1-9"), mariadb("r", "0-1-12", replica=True), primary) == {}
    for errant in ("0-1-10,0-2-11", "0-1-10,0-2-16", "0-1-12,7-2-1"):
        found = find_faults(
            TOPICS, mariadb_set("0-1-9"), [mariadb("r", errant, replica=True), primary]
        )
        assert list(found) == ["r"]
        assert errant.split(",")[-1] in str(found["r"])


def test_mariadb_primary_that_passed_the_log_s_number_by_is_found() -> None:
    """A lost 0-1-13 is noticed although another server has written number 13 and later ones."""
    lost = mariadb("n", "0-1-12,0-2-14")
    assert lost.history.executed.reaches(mariadb_set("0-1-13"))

    assert faults(mariadb_set("0-1-13"), lost) == {"n": ServerBehindLog}
    assert faults(mariadb_set("0-1-13"), mariadb("n", "0-1-12,0-2-13")) == {"n": ServerBehindLog}
    assert faults(mariadb_set("0-1-12"), lost) == {}


def test_mariadb_promoted_from_a_backup_is_no_stranger() -> None:
    """Its binlogs begin at 101 and know nobody's earlier numbers: the log at 100 goes on there."""
    promoted = mariadb("n", "0-2-103", "0-0-99")

    assert faults(mariadb_set("0-1-100"), promoted) == {}
    assert faults(mariadb_set("0-1-99"), promoted) == {"n": BinlogPurged}
    old = mariadb("r", "0-1-100,0-2-102", replica=True)
    assert faults(mariadb_set("0-1-100"), old, promoted) == {}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ([ServerRefused("no"), ServerLost("away")], ServerLost),
        ([BinlogPurged("gone"), ServerLost("away")], ServerLost),
        ([BinlogPurged("gone"), ReplicaBehindLog("later"), ServerLost("away")], ReplicaBehindLog),
        ([ServerDiverged("errant"), BinlogPurged("gone")], BinlogPurged),
        ([ServerDiverged("errant"), ServerRefused("no")], ServerDiverged),
        ([ServerRefused("no")], ServerRefused),
    ],
)
def test_nobody_to_follow_is_one_error(
    found: list[ShardstreamError], kind: type[ShardstreamError]
) -> None:
    """Transient faults are waited for; otherwise the error names the fix for every server."""
    error = none_usable({f"s{i}": fault for i, fault in enumerate(found)})

    assert type(error) is kind
    assert all(str(fault) in str(error) for fault in found)
    assert isinstance(error, Halt) == (kind is ServerDiverged)


def test_trail_names_who_was_ahead_for_too_long() -> None:
    """Lag is how long something is missing; catching up clears it, whatever came after."""
    trail = LagMeter(lag_s_max=10)
    trail.note(0, "p", at(f"{P}:1-5"))
    trail.note(8, "p", at(f"{P}:1-9"))

    assert trail.lagging_behind(9, at(f"{P}:1-4")) == ""
    assert trail.lagging_behind(11, at(f"{P}:1-4")) == "p"
    assert trail.lagging_behind(12, at(f"{P}:1-6")) == ""
    assert trail.lagging_behind(19, at(f"{P}:1-6")) == "p"
    assert trail.lagging_behind(20, at(f"{P}:1-9")) == ""


def test_mariadb_server_that_forgot_a_domain_does_not_lag() -> None:
    """What another one has of a domain without a trace says nothing of how far a server is."""
    meter = LagMeter(lag_s_max=10)
    meter.note(0, "r", mariadb_set("0-1-5,5-1-2"))

    assert meter.lagging_behind(11, mariadb_set("0-1-5")) == ""
    for behind in ("0-1-4", "0-1-5,5-1-1"):
        meter.note(0, "r", mariadb_set("0-1-5,5-1-2"))
        assert meter.lagging_behind(11, mariadb_set(behind)) == "r"


def test_lone_mariadb_replica_may_not_have_written_by_itself() -> None:
    """D4: without a primary, only its own numbers that neither log nor another server has count."""
    log = mariadb_set("0-1-9")

    assert faults(log, mariadb("r", "0-2-8,0-1-12", replica=True)) == {}
    assert faults(log, mariadb("r", "0-1-9,0-2-10", replica=True)) == {"r": ServerDiverged}
    assert faults(mariadb_set("0-2-10"), mariadb("r", "0-1-9,0-2-10", replica=True)) == {}
    knows = mariadb("other", "0-2-10,0-1-11", replica=True)
    assert faults(log, mariadb("r", "0-1-9,0-2-10", replica=True), replace(knows, own="3")) == {}


def test_lone_mysql_replica_may_not_have_written_by_itself() -> None:
    """D4: the same on MySQL, by the UUID of the replica."""
    assert faults(at(f"{P}:1-5"), mysql("r", f"{P}:1-7", replica=True)) == {}
    assert faults(at(f"{P}:1-5"), mysql("r", f"{P}:1-7,{R}:1", replica=True)) == {
        "r": ServerDiverged
    }
    assert faults(at(f"{P}:1-5,{R}:1"), mysql("r", f"{P}:1-7,{R}:1", replica=True)) == {}


def test_one_of_several_primaries_is_enough_to_confirm() -> None:
    """What one primary has is not errant, though another one lacks it."""
    replica = mariadb("r", "0-1-5", replica=True)
    knows, lags = mariadb("p", "0-1-5"), mariadb("n", "0-1-4")

    assert faults(mariadb_set("0-1-3"), replica, knows, lags) == {}


def test_first_transactions_count_like_all_others() -> None:
    """Sequence number 1 of a domain can be lost, errant or not there yet."""
    lost = mariadb("n", "0-2-5")
    errant = mariadb("r", "0-1-5,7-2-1", replica=True)
    behind = mariadb("r", "0-1-5", replica=True)

    assert faults(mariadb_set("0-1-1"), lost) == {"n": ServerBehindLog}
    assert faults(mariadb_set("0-1-5"), errant) == {"r": ServerDiverged}
    assert faults(mariadb_set("0-1-5,7-1-1"), behind) == {"r": ReplicaBehindLog}


def test_replica_of_another_history_is_not_waited_for() -> None:
    """Where another server wrote the log's last number, the replica never gets what the log has."""
    split = mariadb("r", "0-1-12,0-2-13", replica=True)

    assert faults(mariadb_set("0-1-13"), split) == {"r": ServerDiverged}
    assert faults(mariadb_set("0-1-14"), split) == {"r": ReplicaBehindLog}


def test_server_of_the_other_family_is_refused() -> None:
    """A log of MySQL's GTIDs cannot go on with a MariaDB server, nor the other way round."""
    for position, view in (
        (at(f"{P}:1-5"), mariadb("n", "0-1-9")),
        (mariadb_set("0-1-9"), mysql("n", f"{P}:1-5")),
    ):
        with pytest.raises(GtidError, match="cannot be combined"):
            find_faults(TOPICS, position, [view])


def test_what_a_server_lacks_is_what_an_operator_may_give_up() -> None:
    """`skip --lost` names exactly the log's GTIDs that the server does not have, on each family."""
    assert lacking(at(f"{P}:1-9"), mysql("n", f"{P}:1-7")) == at(f"{P}:8-9")
    for state in ("0-1-9,7-1-2", "0-1-8,0-2-11,7-1-3"):
        missing = lacking(mariadb_set("0-1-9,7-1-3"), mariadb("n", state))
        assert missing == mariadb_set("7-1-3" if state.startswith("0-1-9") else "0-1-9")


@pytest.mark.parametrize(
    ("purged", "known"),
    [("", 0), ("0-3-1", 1), ("0-3-7", 7), ("0-0-7", 8), ("7-3-7", 0)],
)
def test_purged_numbers_are_known_and_no_more(purged: str, known: int) -> None:
    """What a MariaDB server has purged it had; one number more where server 0 stands for it."""
    view = mariadb("n", "5-1-1", purged)

    assert [number for number in range(1, 10) if is_known(view, 0, 2, number)] == [
        *range(1, known + 1)
    ]


def test_only_a_primary_s_history_stops_the_shard() -> None:
    """Errant replicas and primaries that are merely away are passed over; later views count."""
    replica, away = mysql("r", f"{P}:1", replica=True), mysql("p1", f"{P}:1")
    wrong = mysql("p2", f"{P}:1")
    diverged = ServerDiverged("errant")

    assert must_stop([replica], {"r": diverged}) is None
    assert must_stop([away], {"p1": ServerLost("away")}) is None
    found: dict[str, ShardstreamError] = {"r": diverged, "p1": ServerLost("away"), "p2": diverged}
    assert must_stop([replica, away, wrong], found) is diverged


@pytest.mark.parametrize(("count", "more"), [(10, False), (11, True)])
def test_a_message_names_ten_gtids(*, count: int, more: bool) -> None:
    """More errant transactions than fit into a line are cut off, and that is shown."""
    gtids = [f"{domain}-2-1" for domain in range(1, count + 1)]
    errant = mariadb("r", ",".join(["0-1-5", *gtids]), replica=True)
    [fault] = find_faults(TOPICS, mariadb_set("0-1-5"), [errant, mariadb("p", "0-1-5")]).values()

    end = "..., which" if more else ", which"
    assert f"has executed {','.join(gtids[:10])}{end} its primary" in str(fault)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 3)), min_size=8, max_size=40
    ),
    st.integers(4, 39),
)
@settings(max_examples=examples(200))
def test_mariadb_servers_are_told_apart_whatever_failovers_lost(
    choices: list[tuple[int, int, int]], logged: int
) -> None:
    """Who is followed has all that the log holds, and a primary that has it is followed."""
    cluster = Cluster()
    for choice in choices[:logged]:
        cluster.play(choice)
    log, held = cluster.primary.logged_position(), frozenset(cluster.primary.history)
    for choice in choices[logged:]:
        cluster.play(choice)

    for server in cluster.servers:
        numbers = {(0, writer): number for writer, number in server.logged.items()}
        history = ServerHistory(server.position(), MariadbGtidSet())
        is_replica = server is not cluster.primary
        view = ServerView("s", is_replica, str(server.server_id), history, numbers)
        found = find_faults(TOPICS, log, [view])
        if not found:
            assert held <= frozenset(server.history)
        elif not is_replica:
            assert not held <= frozenset(server.history)
            assert str(lacking(log, view)) in str(found["s"])


def last(gtid: str, server: str = "1", file: str = "binlog.000004") -> LastTransaction:
    """A last transaction of a log, from a place on server 1."""
    return LastTransaction(gtid, 0, server, file, 4)


def test_mariadb_domain_that_the_server_was_made_to_forget_is_not_lost() -> None:
    """It was read from this very server, from a binlog that it has purged since."""
    log = mariadb_set("0-1-9,5-1-2")
    forgets = mariadb("p", "0-1-9", "0-1-7")
    forgets = replace(forgets, history=replace(forgets.history, oldest="binlog.000005"))

    # The last one was purged there before the log began.
    for there in (last("5-1-2"), last("5-1-2", file="binlog.000002"), last("5-1-2", file="")):
        assert find_faults(TOPICS, log, [forgets], [there]) == {}
    for lost in (
        last("5-1-2", server="2"),
        last("5-1-2", file="binlog.000005"),
        last("5-1-2", server="2", file=""),
        last("5-1-2", file="other.000002"),
        last("0-1-9"),
    ):
        [fault] = find_faults(TOPICS, log, [forgets], [lost]).values()
        assert isinstance(fault, ServerBehindLog)
        assert "made to forget a domain" in str(fault)
        assert "--lost 5-1-2 " in str(fault)
    knows = mariadb("p", "0-1-9,5-1-1", "0-1-7")
    knows = replace(knows, history=replace(knows.history, oldest="binlog.000005"))
    assert list(find_faults(TOPICS, log, [knows], [last("5-1-2")])) == ["p"]


def test_mariadb_replica_with_a_domain_that_its_primary_forgot_is_not_errant() -> None:
    """What the log holds was not written on the replica alone."""
    replica = mariadb("r", "0-1-9,5-1-2", replica=True)
    forgets = mariadb("p", "0-1-9")

    assert faults(mariadb_set("0-1-9,5-1-2"), replica, forgets)["p"] is ServerBehindLog
    assert "r" not in faults(mariadb_set("0-1-9,5-1-2"), replica, forgets)
    assert faults(mariadb_set("0-1-9"), replica, forgets) == {"r": ServerDiverged}


def test_mariadb_server_is_not_asked_for_what_its_binlogs_begin_behind() -> None:
    """It would look in vain for the transaction before; what it is not asked for it sends whole."""
    view = mariadb("n", "0-2-9,3-1-4,7-2-3", "3-1-2")
    first = {0: (2, 7), 7: (2, 1)}
    view = replace(view, history=replace(view.history, first=first))

    def asked(text: str) -> str:
        return str(asked_for(mariadb_set(text), view))

    assert asked("0-1-6,3-1-3,5-1-1") == "3-1-3"
    assert asked("0-2-7,3-1-2,7-2-1") == "0-2-7,3-1-2,7-2-1"
    assert asked_for(at(f"{P}:1-3"), mysql("p", f"{P}:1-9")) == at(f"{P}:1-3")


def test_mariadb_executed_is_the_higher_of_what_was_applied_and_what_was_logged() -> None:
    """A backup's transactions stand in gtid_slave_pos alone, a primary's in its binlogs alone."""
    assert str(mariadb_executed("0-1-6,5-1-1", "0-2-7")) == "0-2-7,5-1-1"
    assert str(mariadb_executed("0-1-6", "0-1-4,7-2-1")) == "0-1-6,7-2-1"
    assert str(mariadb_executed("0-1-6", "0-2-6", "9-1-1")) == "0-2-6,9-1-1"


def test_mariadb_what_was_applied_and_not_logged_is_in_no_binlog() -> None:
    """Also where the server has written more in the domain since."""
    assert str(mariadb_purged("", "0-1-6,5-1-1", "0-1-7,0-2-8")) == "5-1-1"
    assert str(mariadb_purged("0-1-3,7-1-1", "0-1-6", "0-1-5,0-2-8")) == "0-1-6,7-1-1"
    assert str(mariadb_purged("0-2-9", "0-1-6", "0-2-12")) == "0-2-9"


def test_mariadb_position_before_the_binlogs_holds_what_came_with_the_backup() -> None:
    """A log that begins there takes nothing older from a server that still has it."""
    history = ServerHistory(
        MariadbGtidSet.parse("0-2-9,5-1-1,7-2-3"),
        MariadbGtidSet.of({0: (0, 5), 5: (1, 1)}),
        first={0: (2, 7), 7: (2, 1)},
    )

    assert str(before_binlogs(history)) == "0-2-6,5-1-1"
    mysql_history = mysql("p", f"{P}:1-9", f"{P}:1-4").history
    assert before_binlogs(mysql_history) == at(f"{P}:1-4")
