"""The live page of `shardstream serve`, in a real browser."""

import hashlib
import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser

from event_token import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import free_ports
from shardstream.status.access import FOLDER
from shardstream.status.refresh import ANSWER_S, REFRESH_S
from tests.database_servers import DatabaseFixture
from tests.page.chromium import headless_chromium
from tests.page.watching import AXE, watching
from tests.shardstream.command_line import background, run, streaming, write_settings
from tests.shardstream.status.answers import get
from tests.shardstream.status.serving import Served, serving
from tests.shardstream.status.views import busy_keyspace, now_us, shard_look, two_shards
from tests.waiting import wait_for
from topics.fleet.view import KeyspaceView, keyspace_view
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.keyspace.topology import ShardEntry, Topology
from topics.names import ShardTopics
from topics.progress.record import StopReason

TOKEN = "a-token-of-the-tests"
HALVES = ("-80", "80-")
# After so long somebody who looks at the page must not be misled any more.
TOLD_S_MAX = 5
HOSTILE = "<img src=x onerror=alert(1)>\"'&amp;"


@pytest.fixture(scope="module")
def browser(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    with headless_chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def looked(keyspace: str) -> KeyspaceView:
    """A keyspace with one of everything, one without topics, and one with names that are HTML."""
    if keyspace == "new":
        raise UsageError("keyspace new has no topology: start a producer of it first")
    return busy_keyspace(keyspace, HOSTILE if keyspace == "hostile" else "db-a:3306")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_safe(browser: Browser, scheme: str) -> None:
    """Axe finds no fault, names are text, nothing is asked of other hosts, no error is logged."""
    with serving(looked, "commerce", "new", "hostile") as served:
        url = f"http://127.0.0.1:{served.port}/"
        with watching(browser, url, color_scheme=scheme) as watched:
            watched.wait_for_sentence("commerce", "80- has written nothing for")
            watched.page.get_by_role("button", name="80-c0").first.click()
            more = watched.page.locator("tr.more").first.text_content()
            faults = watched.faults_of_axe()
            new = watched.sentence("new")
            hostile = watched.page.locator('[data-key="hostile"] .readers').text_content()
            cards = [
                watched.page.locator(f'[data-key="commerce"] .{name} li').all_text_contents()
                for name in ("readers", "sinks", "caches")
            ]
            copies = watched.page.locator('[data-key="commerce"] .copies').text_content()
            images = watched.page.locator("#keyspaces img").count()
            forks = watched.timeline("commerce")["forks"]
            link = watched.page.locator('[data-key="commerce"] .stops a').first
            watched.page.goto(urljoin(url, link.get_attribute("href")))
            section = watched.page.locator(":target").text_content()
            faults += watched.faults_of_axe()

    assert faults == []
    assert watched.errors == []
    assert all(asked.startswith(url) for asked in watched.requests)
    assert "start a producer of it first" in new
    assert HOSTILE in (hostile or "")
    assert images == 0
    assert section == "ShardSilent"
    for found, name in zip(cards, ("db-a:3306", "a query", "a cache"), strict=True):
        assert len(found) == 1
        assert found[0].startswith(name)
    assert "30 s left" in (copies or "")
    assert "watermark" in (more or "")
    [fork] = forks
    assert (fork["sources"], fork["targets"]) == (["-80"], ["-40", "40-80"])


STOPPED = "shardstream skip commerce 80- --lost 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9 --reason X"


def with_stop(keyspace: str) -> KeyspaceView:
    """A keyspace of two shards, of which an error has ended the producer of 80-."""
    ended = shard_look()
    assert ended.progress is not None
    said = "db-b lacks transactions. " + "A long sentence about it. " * 12
    reason = StopReason(now_us(), "ServerBehindLog", said, command=STOPPED)
    looks = {
        "-80": shard_look(),
        "80-": replace(ended, progress=replace(ended.progress, stopped=reason)),
    }
    return keyspace_view(
        Topology(keyspace, 3, (ShardEntry("-80"), ShardEntry("80-"))), looks, now_us()
    )


def test_a_stop_on_a_telephone(browser: Browser) -> None:
    """A short line says what and since when; what to type is whole; the rest is folded below.

    A click on the command selects all of it, and the link leads to the section of its error.
    """
    phone = {"width": 390, "height": 844}
    with serving(with_stop, "commerce") as served:
        url = f"http://127.0.0.1:{served.port}/"
        with watching(browser, url, viewport=phone) as watched:
            watched.wait_for_sentence("commerce", "80- stopped")
            page, section = watched.page, watched.page.locator('[data-key="commerce"]')
            sentence = watched.sentence("commerce")
            lines = page.evaluate(
                "() => { const at = document.querySelector('.sentence');"
                " return at.getBoundingClientRect().height"
                " / parseFloat(getComputedStyle(at).lineHeight); }"
            )
            page.locator("code.command").click()
            selected = page.evaluate("() => getSelection().toString()")
            command = page.locator("code.command").bounding_box()
            when = section.locator(".commands .facts").inner_text()
            folded = section.locator("details .facts").is_visible()
            page.locator("summary").click()
            facts = section.locator("details .facts").inner_text()
            faults = watched.faults_of_axe()
            overflow = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            places = [
                section.locator(f"{card} a").first.get_attribute("href")
                for card in (".causes", ".stops")
            ]
            page.goto(urljoin(url, places[0]))
            heading = page.locator(":target").text_content()

    assert re.fullmatch(r"commerce: 80- stopped \d+ s ago: ServerBehindLog", sentence)
    # The fonts of telephones are narrower than the widest one, which may be all that is here.
    assert round(lines) <= 2
    assert selected.strip() == STOPPED
    assert when == "If nothing else helps:"
    assert command is not None
    assert command["x"] + command["width"] <= phone["width"]
    assert not folded
    assert "A long sentence about it." in facts
    assert "only what is older than" in facts
    assert overflow <= 0
    assert faults == []
    assert places == ["docs/runbook.md#the-server-has-another-history"] * 2
    assert heading == "The server has another history"


def test_eight_shards_need_no_scrolling(browser: Browser) -> None:
    """What matters of a keyspace fits into a window of 1280 x 800."""
    with (
        serving(two_shards, "a", "b", "c") as served,
        watching(browser, f"http://127.0.0.1:{served.port}/") as watched,
    ):
        watched.wait("document.querySelectorAll('tr[data-level]').length === 6")
        height = watched.page.evaluate(
            "() => { const rect = (s) => document.querySelector(s).getBoundingClientRect();"
            " return rect('tbody tr').height * 8 + rect('thead').height + rect('canvas').height"
            " + 6 * LANE_PX + rect('header').height + 2 * rect('.sentence').height"
            " + rect('figcaption').height; }"
        )

    assert height < 800


def test_the_token_is_asked_for_once(browser: Browser) -> None:
    """A wrong token shows nothing, the right one the page; scripts cannot read the cookie."""
    with serving(two_shards, "commerce", token=TOKEN) as served:
        url = f"http://127.0.0.1:{served.port}/"
        with watching(browser, url) as watched:
            faults = watched.faults_of_axe()
            watched.page.get_by_label("Token").fill("a-wrong-token-of-tests")
            watched.page.get_by_role("button").click()
            refused = watched.page.get_by_role("alert").text_content()
            watched.page.get_by_label("Token").fill(TOKEN)
            watched.page.get_by_role("button").click()
            watched.wait_for_sentence("commerce", "can be read")
            seen = watched.page.url
            cookies = watched.page.evaluate("() => document.cookie")
            [cookie] = watched.page.context.cookies()

    assert faults == []
    assert refused == "That is not the token."
    assert seen == url
    assert cookies == ""
    assert cookie.get("httpOnly")
    assert cookie.get("sameSite") == "Strict"
    assert TOKEN not in cookie.get("value", TOKEN)


def split(config: Path, kafka: KafkaCluster, keyspace: str) -> None:
    """Declare that -80 and 80- have taken over from now on."""
    client = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    for shard in HALVES:
        provision_shard(client, ShardTopics(keyspace, shard))
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    shards = [f"--shard={shard}" for shard in HALVES]
    declare = ["topology", "set", keyspace, *shards, "--id", "halves", "--switched-at", now]
    done = run(*declare, "--config", str(config))
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_a_live_keyspace(
    browser: Browser,
    *,
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
) -> None:
    """A stopped producer is named, also by a `serve` that was restarted; a split is seen to fork.

    The same page stays open throughout.
    """
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    settings = ("--json", "--config", str(config))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    url, serve = f"http://{address}/", ("serve", *settings, "--http", address)
    with ExitStack() as opened:
        whole = opened.enter_context(background(tmp_path, "-", "produce", keyspace, "-", *settings))
        whole.wait_for("streaming", streaming)
        with background(tmp_path, "first", *serve) as server:
            server.wait_for("its address", lambda found: bool(found.lines))
            watched = opened.enter_context(watching(browser, url))
            watched.wait_for_sentence(keyspace, "everything older than")
            errors = list(watched.errors)
            whole.process.send_signal(signal.SIGSTOP)
        watched.wait("document.body.dataset.connected === 'no'")
        opened.enter_context(background(tmp_path, "second", *serve))
        watched.wait_for_sentence(keyspace, "- has written nothing for")
        watched.wait("document.body.dataset.connected === 'yes'")
        stopped = watched.page.locator(".stops").text_content()
        split(config, kafka, keyspace)
        halves = dict(zip(HALVES, (mysql_a, mysql_b), strict=True))
        write_settings(tmp_path, kafka.bootstrap_servers, keyspace, halves)
        for shard in HALVES:
            produce = ("produce", keyspace, shard, *settings)
            opened.enter_context(background(tmp_path, shard, *produce))
        watched.wait_for_sentence(keyspace, "everything older than")
        timeline = watched.timeline(keyspace)
        hops = watched.page.locator(".hops").text_content()

    assert errors == []
    assert "-: no progress until now" in (stopped or "")
    assert [lane["shard"] for lane in timeline["lanes"]] == ["-", *HALVES]
    [fork] = timeline["forks"]
    assert (fork["sources"], fork["targets"]) == (["-"], list(HALVES))
    assert timeline["lanes"][0]["toUs"] == timeline["lanes"][1]["fromUs"] == fork["atUs"]
    assert "- became -80, 80-" in (hops or "")
    assert all(asked.startswith(url) for asked in watched.requests)


STATES = "[...document.querySelectorAll('td.state')].map((cell) => cell.textContent)"


@pytest.mark.full
def test_an_outage_of_kafka(
    browser: Browser,
    tmp_path: Path,
    kafka: KafkaCluster,
    keyspace: str,
    mysql_a: DatabaseFixture,
) -> None:
    """The page, its state and its metrics say that Kafka is away; what is shown is called old."""
    config = write_settings(tmp_path, kafka.bootstrap_servers, keyspace, {"-": mysql_a})
    settings = ("--json", "--config", str(config))
    port = free_ports(1)[0]
    url, serve = f"http://127.0.0.1:{port}/", ("serve", *settings, "--http", f"127.0.0.1:{port}")
    with ExitStack() as opened:
        shard = opened.enter_context(background(tmp_path, "-", "produce", keyspace, "-", *settings))
        shard.wait_for("streaming", streaming)
        server = opened.enter_context(background(tmp_path, "serve", *serve))
        server.wait_for("its address", lambda found: bool(found.lines))
        watched = opened.enter_context(watching(browser, url))
        watched.wait_for_sentence(keyspace, "everything older than")
        before = watched.page.evaluate(STATES)
        kafka.stop()
        try:
            watched.wait_for_sentence(keyspace, "Kafka does not answer")
            connection = watched.page.locator("#connection").text_content()
            states = watched.page.evaluate(STATES)
            opacity = watched.page.evaluate(
                "getComputedStyle(document.querySelector('.wide')).opacity"
            )
            [seen] = json.loads(get(port, "/status.json")[1])["keyspaces"]
            metrics = get(port, "/metrics")[1]
            probes = [get(port, path)[0] for path in ("/livez", "/readyz")]
        finally:
            kafka.start()
        watched.wait_for_sentence(keyspace, "everything older than")
        watched.wait("document.body.dataset.connected === 'yes'")
        watched.wait(f"{STATES}.join() === '● serving'")

    assert REFRESH_S + ANSWER_S < TOLD_S_MAX
    assert before == ["● serving"]
    assert "serve has seen nothing new for" in (connection or "")
    assert re.fullmatch(r"○ serving, \d+ s ago", "".join(states))
    assert float(opacity) < 1
    assert seen["is_held_back"]
    assert "Kafka does not answer" in seen["error"]
    assert f'shardstream_watch_up{{keyspace="{keyspace}"}} 0.0' in metrics
    # No restart of `serve` would help, and people want to see the page now.
    assert probes == [200, 200]


def test_a_page_that_is_opened_later_shows_the_last_two_minutes(browser: Browser) -> None:
    """Rates and the colors of lanes are the server's memory, not that of an open page."""
    late = threading.Event()

    def late_for_a_while(keyspace: str) -> KeyspaceView:
        return two_shards(keyspace, high=5 if late.is_set() else 0.2)

    with serving(late_for_a_while, "commerce") as served:
        for is_late in (True, False):
            _await_looks(served, 5)
            (late.set if is_late else late.clear)()
        _await_looks(served, 5)
        with watching(browser, f"http://127.0.0.1:{served.port}/") as watched:
            watched.wait("(document.querySelector('td.spark').rates || []).length > 10")
            watched.wait("window.shardstream.timelines.commerce.lanes[1].parts.length === 3")
            lanes = watched.timeline("commerce")["lanes"]

    assert [part["level"] for part in lanes[0]["parts"]] == ["ok"]
    assert [part["level"] for part in lanes[1]["parts"]] == ["ok", "amber", "ok"]
    ends = [(part["fromUs"], part["toUs"]) for part in lanes[1]["parts"]]
    assert [end for _, end in ends[:-1]] == [begin for begin, _ in ends[1:]]


def _await_looks(served: Served, more: int) -> None:
    first = served.fleet.state().number
    wait_for("looks", lambda: served.fleet.state().number >= first + more)


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
        ("uPlot.LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
        ("axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"),
        ("axe.LICENSE", "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e"),
    ],
)
def test_foreign_files_are_as_published(name: str, sha256: str) -> None:
    """Of uPlot 1.6.32 (MIT) and axe-core 4.14.1 (MPL 2.0, for tests alone), as npm has them."""
    folder = AXE.parent if name.startswith("axe") else FOLDER / "vendor"

    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256


def test_the_page_stays_small() -> None:
    """What is written by hand can be read at one go, and puts nothing in as HTML."""
    files = [path for path in FOLDER.iterdir() if path.is_file()]

    assert all(len(path.read_text("utf-8").splitlines()) < 400 for path in files)
    assert not [path for path in files if "innerHTML" in path.read_text("utf-8")]
