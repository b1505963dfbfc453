"""What is kept of rules and of their key, so that a later start knows whether they have changed."""

import hashlib
import hmac

import pytest

from producers.filters.rules import FilterRule, FilterSettings, Mask, MaskKind, TablePattern

KEY = b"0123456789abcdef0123456789abcdef"
ORDERS = TablePattern("shop.orders")
HASHED = FilterRule(ORDERS, masks={"mail": Mask(MaskKind.HMAC)})


def test_the_fingerprint_of_a_key_stays_the_same() -> None:
    """It is kept in the topology: 128 bits of an HMAC under the key, in hexadecimal."""
    digest = hmac.new(KEY, b"fingerprint of shardstream's hmac_key", hashlib.sha256).hexdigest()

    assert FilterSettings(rules=(HASHED,), hmac_key=KEY).mask_key() == digest[:32]


def test_a_key_that_no_mask_uses_has_no_fingerprint() -> None:
    """It may be changed at will."""
    dropped = FilterRule(ORDERS, masks={"mail": Mask(MaskKind.DROP)})

    assert FilterSettings(rules=(dropped,), hmac_key=KEY).mask_key() == ""
    assert FilterSettings(hmac_key=KEY).mask_key() == ""


def test_the_text_of_a_rule_stays_the_same() -> None:
    """Versions compare it: a mask without a length has 0, text is not escaped."""
    rule = FilterRule(ORDERS, where="name = 'ä'", masks={"mail": Mask(MaskKind.NULL)})

    assert FilterSettings(rules=(rule,)).rule_text("shop", "orders") == (
        '{"columns": [], "masks": {"mail": ["null", 0]}, "where": "name = \'ä\'"}'
    )


@pytest.mark.parametrize(
    ("settings", "filters"),
    [
        (FilterSettings(include=(ORDERS,)), True),
        (FilterSettings(exclude=(ORDERS,)), True),
        (FilterSettings(rules=(HASHED,), hmac_key=KEY), True),
        (FilterSettings(hmac_key=KEY), False),
    ],
)
def test_any_list_or_rule_is_something_to_filter(
    settings: FilterSettings, *, filters: bool
) -> None:
    """A key alone is not."""
    assert bool(settings) is filters
