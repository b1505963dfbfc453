-- only: mysql
-- since: mysql 8.0.20, binlog_transaction_compression
CREATE TABLE t(id INT PRIMARY KEY, v MEDIUMTEXT);
SET binlog_transaction_compression=ON, binlog_transaction_compression_level_zstd=22, binlog_rows_query_log_events=ON;
INSERT INTO t VALUES (1, REPEAT('x', 100)), (2, REPEAT('y', 100));
SET binlog_row_image=MINIMAL;
UPDATE t SET v = 'w' WHERE id = 1;
DELETE FROM t WHERE id = 2;
