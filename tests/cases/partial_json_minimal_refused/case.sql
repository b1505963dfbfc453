-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
SET binlog_row_value_options='PARTIAL_JSON', binlog_row_image=MINIMAL;
INSERT INTO t VALUES (1, '{"a": 1, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}');
UPDATE t SET j = JSON_SET(j, '$.a', 2);
