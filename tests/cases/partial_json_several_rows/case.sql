-- only: mysql
SET binlog_row_value_options='PARTIAL_JSON';
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, '{"a": 1, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'), (2, '{"a": 2, "pad": "yyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}'), (3, NULL), (4, '[]'), (5, '{"b": {"a": 5}, "pad": "yyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}');
UPDATE t SET j = JSON_SET(j, '$.a', id * 100);
UPDATE t SET j = JSON_SET(j, '$.a[0]', id);
