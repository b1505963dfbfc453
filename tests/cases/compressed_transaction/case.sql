-- only: mysql
-- since: mysql 8.0.20, binlog_transaction_compression
CREATE TABLE t(id INT PRIMARY KEY, v VARCHAR(99));
SET binlog_transaction_compression=ON;
INSERT INTO t VALUES (1, REPEAT('x', 90)), (2, 'y');
BEGIN;
INSERT INTO t VALUES (3, 'z');
UPDATE t SET v = 'w' WHERE id = 1;
SAVEPOINT a;
DELETE FROM t WHERE id = 2;
ROLLBACK TO a;
COMMIT;
CREATE TABLE u SELECT * FROM t;
SET binlog_transaction_compression=OFF;
INSERT INTO t VALUES (5, 'y');
