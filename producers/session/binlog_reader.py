"""Feeds the replication stream to the decoder, which produces records into the open batch."""

import time
from typing import Final

from databases.errors import ServerLost
from event_token import Flavor, parse_gtid_set
from event_token.errors import ShardstreamError
from producers.decoder import Decoder
from producers.decoder.errors import DecoderHalt, ServerError, WriteAfterEnd
from producers.errors import StopPassed, StopsBehindOthers, TransactionTooLong
from producers.replication.stream import STREAM_SILENCE_S_MAX, ReplicationStream, server_error
from producers.session.committer import Committer
from producers.shard_log.publisher import Publisher
from producers.skip.advice import out_of_order_advice, skip_advice

# While rows of one transaction keep coming, only bytes end a wait; a stop is noticed within this.
WAIT_S_MAX: Final = 0.1


class BinlogReader:
    """Waits for bytes of one stream and decodes them.

    `is_dry`: the last `read` left nothing in the stream.
    """

    def __init__(
        self,
        server_name: str,
        stream: ReplicationStream,
        decoder: Decoder,
        publisher: Publisher,
        committer: Committer,
    ) -> None:
        """The stream has just been opened."""
        self.is_dry = False
        self._server_name = server_name
        self._stream = stream
        self._decoder = decoder
        self._publisher = publisher
        self._committer = committer
        self._heard_s = time.monotonic()

    def read(self, wait_s: float) -> None:
        """Wait for bytes and decode what has come.

        Raises ServerLost when the server has been silent for too long, TransactionTooLong, and
        the errors of stream, decoder and publisher.
        """
        if self._stream.wait(wait_s):
            if self._stream.fill():
                self._heard_s = time.monotonic()
                self._decode()
        elif time.monotonic() - self._heard_s > STREAM_SILENCE_S_MAX:
            raise ServerLost(
                f"{self._server_name} has sent nothing for {STREAM_SILENCE_S_MAX} s, not even a "
                "heartbeat"
            )
        rows = self._decoder.messages
        if self._decoder.in_transaction and rows:  # brokers learn of it with the first record
            what = f"transaction {self._decoder.gtid} with {rows} rows so far"
            try:
                self._publisher.check_age(what)
            except TransactionTooLong as error:
                raise self._advised(error) from error
        self.is_dry = not self._stream.wait(0)

    def _decode(self) -> None:
        decoder, stream = self._decoder, self._stream
        while True:
            before = stream.start
            limit = self._committer.row_limit()
            with self._publisher.errors("writing rows"):
                try:
                    stream.start = decoder.feed(stream.buffer, stream.start, stream.end, limit)
                except ServerError as error:
                    where = f"replication stream of {self._server_name}"
                    raise server_error(error.code, error.server_message, where) from error
                except DecoderHalt as error:
                    raise self._advised(error) from error
            counters = self._committer.counters
            counters.binlog_bytes += stream.start - before
            counters.queue_bytes = decoder.bytes_produced
            self._publisher.serve()
            if decoder.has_mark:
                self._committer.commit()  # A mark ends its Kafka transaction.
                continue
            if self.has_order_ended():
                return
            if decoder.in_transaction or decoder.messages < limit or stream.start == before:
                return
            self._committer.commit_if_due(dry=False)

    def _advised(self, error: DecoderHalt | TransactionTooLong) -> ShardstreamError:
        """Name the way past the transaction that stops the shard, if it is one.

        MariaDB's positions allow it only when all transactions before it are committed.
        """
        if not self._decoder.in_transaction:
            return error
        gtid = self._decoder.gtid
        if self._decoder.transactions and not self._committer.is_careful:
            return StopsBehindOthers(gtid, error)
        if isinstance(error, WriteAfterEnd):
            return error  # its message names the commands of the reshard
        topics = self._publisher.topics
        if self._is_out_of_order(gtid):
            return type(error)(f"{error}. {out_of_order_advice(topics, gtid)}")
        order = self._committer.order
        if isinstance(error, TransactionTooLong):
            return TransactionTooLong(f"{error}. {skip_advice(topics, gtid, force=True)}")
        if order is not None and order.covers(gtid, error):
            return StopPassed(gtid, error)
        return type(error)(f"{error}. {skip_advice(topics, gtid)}", error.tables)

    def has_order_ended(self) -> bool:
        """Whether the operator's order to pass stops, if there is one, has been carried out."""
        order = self._committer.order
        return order is not None and order.check_end(self._decoder)

    def _is_out_of_order(self, gtid: str) -> bool:
        """Whether a number of MariaDB is not above the last one that the log holds."""
        committed = self._committer.committed.position
        flavor = self._committer.flavor
        reached = parse_gtid_set(committed, flavor)
        return flavor is Flavor.MARIADB and reached.reaches(parse_gtid_set(gtid, flavor))
