"""How values become bytes."""

import sys

import pytest

from caching.client.options import Codec, codec_named
from event_token.errors import UsageError
from tests.caching.client.model import Model


@pytest.mark.parametrize("name", ["json", "msgspec", "pickle"])
def test_values_survive(name: str) -> None:
    """What is encoded is read back; each codec has a number of its own."""
    codec = codec_named(name)

    assert codec.decode(codec.encode({"a": [1, None, "é"]})) == {"a": [1, None, "é"]}
    assert codec.number == ["json", "msgspec", "pickle"].index(name)


def test_values_of_another_codec_are_read_again(model: Model) -> None:
    """So the codec of a cache can be changed while it is used."""
    for codec in ("json", "msgspec"):
        cache = model.cache(codec=codec)
        assert model.get(cache, "pair") == model.get(cache, "pair") == {"r20": 1, "ra0": 1}
        assert (cache.counters()["loads"], cache.counters()["hits"]) == (1, 1)
    assert cache.counters()["unreadable"] == 1


def test_codecs_of_ones_own() -> None:
    """They take a number that no codec of this package will have."""
    upper = Codec(200, "upper", lambda value: str(value).upper().encode(), bytes.decode)

    assert codec_named(upper) is upper
    for number in (127, 256, -1):
        with pytest.raises(UsageError, match="its number is"):
            codec_named(Codec(number, "mine", bytes, bytes))


def test_codecs_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name is refused, and a missing library is named."""
    monkeypatch.setitem(sys.modules, "msgspec.msgpack", None)
    with pytest.raises(UsageError, match="the codecs are json, msgspec and pickle"):
        codec_named("yaml")
    with pytest.raises(UsageError, match=r"pip install 'shardstream\[msgspec\]'"):
        codec_named("msgspec")
