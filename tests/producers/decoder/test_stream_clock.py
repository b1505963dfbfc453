"""Times of a shard's log, without a server: never back, never far ahead of the producer's clock."""

from producers.decoder.stream.transaction import StreamClock

NOW_US = 1_000_000
AHEAD_US = 100


class Scene:
    """A stream clock, the producer's clock that it reads, and the notices that it gives."""

    def __init__(self, floor_us: int = 0) -> None:
        self.now_us = NOW_US
        self.notices: list[str] = []
        self.clock = StreamClock(floor_us, AHEAD_US, lambda: self.now_us, self.notices.append)

    def transaction(self, commit_us: int) -> tuple[int, int]:
        """The record time of a whole transaction, and the head after it."""
        self.clock.take(commit_us)
        self.clock.commit()
        return self.clock.timestamp_us, self.clock.head_us


def test_a_time_at_the_bound_is_taken_as_it_is() -> None:
    """D9: exactly the bound is not ahead of it: the time is kept, promised and not reported."""
    scene = Scene()

    assert scene.transaction(NOW_US + AHEAD_US) == (NOW_US + AHEAD_US, NOW_US + AHEAD_US)
    assert scene.notices == []


def test_times_beyond_the_bound_are_clamped_and_reported_once_each_time() -> None:
    """A row of such commits is one notice; after a sound commit the next is reported again."""
    scene = Scene()
    bound_us = NOW_US + AHEAD_US

    assert scene.transaction(NOW_US) == (NOW_US, NOW_US)
    assert scene.transaction(bound_us + 7) == (bound_us, NOW_US)
    assert scene.transaction(bound_us + 9) == (bound_us, NOW_US)
    assert len(scene.notices) == 1
    assert f"{7} us later than this host's clock plus {AHEAD_US} us" in scene.notices[0]
    assert scene.transaction(NOW_US + 1) == (bound_us, NOW_US + 1)
    assert scene.transaction(bound_us + 9) == (bound_us, NOW_US + 1)
    assert len(scene.notices) == 2


def test_the_bound_follows_the_clock() -> None:
    """D9: later the same commit is no longer ahead."""
    scene = Scene()
    assert scene.transaction(NOW_US + 600) == (NOW_US + AHEAD_US, 0)
    assert len(scene.notices) == 1
    scene.now_us += 500

    assert scene.transaction(NOW_US + 600) == (NOW_US + 600, NOW_US + 600)
    assert len(scene.notices) == 1


def test_times_and_heads_never_fall() -> None:
    """An earlier commit has the time of the one before, and lowers no head."""
    scene = Scene()
    scene.transaction(NOW_US)

    assert scene.transaction(NOW_US - 50) == (NOW_US, NOW_US)


def test_what_follows_a_heartbeat_row_is_no_earlier() -> None:
    """The row's time counts from the next transaction on, up to the bound of the clock."""
    scene = Scene()
    scene.clock.follow(NOW_US + 50)
    assert scene.transaction(NOW_US) == (NOW_US + 50, NOW_US)

    scene.clock.follow(NOW_US + 7)
    assert scene.transaction(NOW_US + 60) == (NOW_US + 60, NOW_US + 60)

    scene.clock.follow(NOW_US + AHEAD_US + 9)
    assert scene.transaction(NOW_US + 61) == (NOW_US + AHEAD_US, NOW_US + 61)

    scene.now_us += 500
    scene.clock.follow(NOW_US + AHEAD_US + 9)
    assert scene.transaction(NOW_US + 62) == (NOW_US + AHEAD_US + 9, NOW_US + 62)


def test_an_open_transaction_is_not_promised() -> None:
    """The head follows a transaction when it ends."""
    scene = Scene(5)
    scene.clock.take(NOW_US)

    assert (scene.clock.timestamp_us, scene.clock.head_us) == (NOW_US, 5)


def test_a_floor_ahead_of_the_clock_is_no_head() -> None:
    """The last record may have been clamped to a bound: the head begins at the clock at most."""
    ahead, behind = Scene(NOW_US + 50), Scene(NOW_US - 50)

    assert (ahead.clock.timestamp_us, ahead.clock.head_us) == (NOW_US + 50, NOW_US)
    assert (behind.clock.timestamp_us, behind.clock.head_us) == (NOW_US - 50, NOW_US - 50)


def test_copied_rows_of_an_empty_log_have_the_clock_s_time() -> None:
    """Without a record so far there is no earlier time; the epoch itself would be one."""
    empty, epoch = Scene(-1), Scene(0)
    empty.clock.take_now()
    epoch.clock.take_now()

    assert empty.clock.timestamp_us == NOW_US
    assert epoch.clock.timestamp_us == 0


def test_a_head_promised_elsewhere_is_kept() -> None:
    """It raises times and head, also that of an open transaction; a lower one changes nothing."""
    idle = Scene()
    idle.clock.advance(NOW_US)
    scene = Scene()
    scene.clock.take(NOW_US)
    scene.clock.advance(NOW_US + 40)
    scene.clock.commit()

    assert (idle.clock.timestamp_us, idle.clock.head_us) == (NOW_US, NOW_US)
    assert (scene.clock.timestamp_us, scene.clock.head_us) == (NOW_US + 40, NOW_US + 40)
    assert scene.transaction(NOW_US + 10) == (NOW_US + 40, NOW_US + 40)
    scene.clock.advance(NOW_US - 40)
    assert (scene.clock.timestamp_us, scene.clock.head_us) == (NOW_US + 40, NOW_US + 40)
    assert scene.transaction(NOW_US + 60) == (NOW_US + 60, NOW_US + 60)
