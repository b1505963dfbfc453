-- only: mysql
-- since: mysql 8.0.20, binlog_transaction_compression
CREATE TABLE t(id INT PRIMARY KEY, v VARCHAR(99));
SET binlog_transaction_compression=ON;
XA START 'c';
INSERT INTO t VALUES (1, REPEAT('x', 90)), (2, REPEAT('x', 90));
XA END 'c';
XA PREPARE 'c';
XA COMMIT 'c';
INSERT INTO t VALUES (3, REPEAT('x', 90)), (4, REPEAT('x', 90));
