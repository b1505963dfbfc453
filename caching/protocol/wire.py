"""Tokens within floors and entries: a count, then each token as `event_token` writes it."""

from caching.protocol.freshness import Tokens
from event_token import EventToken
from event_token.opaque import FieldReader, FieldWriter, OpaqueError
from event_token.token import read_token, write_token


def write_tokens(writer: FieldWriter, tokens: Tokens) -> None:
    """Append the tokens, sorted by shard, so that equal sets are equal bytes."""
    writer.unsigned(len(tokens))
    for shard in sorted(tokens):
        write_token(writer, tokens[shard])


def read_tokens(reader: FieldReader) -> dict[str, EventToken]:
    """Read them back, by shard; a UsageError if they are broken."""
    tokens: dict[str, EventToken] = {}
    for _ in range(reader.unsigned()):
        token = read_token(reader)
        if token.shard in tokens:
            raise OpaqueError(f"shard {token.shard} stands in it twice")
        tokens[token.shard] = token
    return tokens
