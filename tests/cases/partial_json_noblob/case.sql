-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY, n INT, j JSON);
SET binlog_row_value_options='PARTIAL_JSON', binlog_row_image=NOBLOB;
INSERT INTO t VALUES (1, 1, '{"a": 1, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}');
UPDATE t SET n = 2;
