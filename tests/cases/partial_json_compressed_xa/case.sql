-- only: mysql
-- since: mysql 8.0.20, binlog_transaction_compression
SET binlog_row_value_options='PARTIAL_JSON', binlog_transaction_compression=ON;
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, '{"a": 1, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}');
UPDATE t SET j = JSON_SET(j, '$.a', 2);
XA START 'x';
UPDATE t SET j = JSON_SET(j, '$.a', 3);
XA END 'x';
XA PREPARE 'x';
XA COMMIT 'x';
