"""Tokens within floors and entries: a count, then each token as `event_token` writes it."""

from functools import lru_cache

from caching.protocol.freshness import Tokens
from event_token import EventToken
from event_token.opaque import FieldReader, FieldWriter, OpaqueError
from event_token.token import read_token, write_token

# Tokens whose stored form is kept: those of the other shards of a floor, and of a transaction.
_TOKENS_CACHED = 1_024


def write_tokens(writer: FieldWriter, tokens: Tokens) -> None:
    """Append the tokens, sorted by shard, so that equal sets are equal bytes."""
    writer.unsigned(len(tokens))
    for shard in sorted(tokens):
        writer.raw(_written(tokens[shard]))


@lru_cache(_TOKENS_CACHED)
def _written(token: EventToken) -> bytes:
    writer = FieldWriter()
    write_token(writer, token)
    return writer.getvalue()


def read_tokens(reader: FieldReader) -> dict[str, EventToken]:
    """Read them back, by shard; a UsageError if they are broken."""
    tokens: dict[str, EventToken] = {}
    for _ in range(reader.unsigned()):
        token = read_token(reader)
        if token.shard in tokens:
            raise OpaqueError(f"shard {token.shard} stands in it twice")
        tokens[token.shard] = token
    return tokens
