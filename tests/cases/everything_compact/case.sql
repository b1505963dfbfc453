-- only: mysql
-- since: mysql 8.0.20, binlog_transaction_compression
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, '{"a": 1, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'), (2, NULL);
UPDATE t SET j = JSON_SET(j, '$.a', 2);
FLUSH BINARY LOGS;
BEGIN;
DELETE FROM t WHERE id = 2;
UPDATE t SET j = JSON_REMOVE(j, '$.a');
COMMIT;
