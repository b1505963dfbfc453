-- only: mysql
SET binlog_row_value_options='PARTIAL_JSON';
CREATE TABLE t(id INT PRIMARY KEY, a VARCHAR(30), j JSON, d DECIMAL(20,3), k JSON, tm TIME(3), ts TIMESTAMP(6) NULL, b BIT(9), e ENUM('x','y'));
INSERT INTO t VALUES (1, 'é', '{"aa": "0123456789012345678901234567890123456789", "b": 1, "list": [1, {"x": [2, 3]}], "": null}', 1.5, '[1, 2, 3, "four four four four four four"]', '-01:02:03.004', '2020-01-01 00:00:00', 300, 'y');
UPDATE t SET j = JSON_SET(j, '$.b', 2.5);
UPDATE t SET j = JSON_SET(j, '$.newkey', CAST('{"z": [true, false, null]}' AS JSON)), a = 'b';
UPDATE t SET j = JSON_REMOVE(j, '$.aa'), k = JSON_SET(k, '$[1]', 'two');
UPDATE t SET j = JSON_SET(j, '$.list[1].x[0]', -70000, '$.list[0]', 18446744073709551615);
UPDATE t SET k = JSON_REMOVE(k, '$[0]');
UPDATE t SET k = JSON_SET(k, '$[99]', CAST('2020-01-02 03:04:05.678' AS DATETIME(3)));
UPDATE t SET j = JSON_SET(j, '$."key \\"with\\" quotes.and[dots]"', CAST(1.25 AS DECIMAL(9,2)));
UPDATE t SET j = JSON_REPLACE(j, '$.nothing', 1), a = 'unchanged';
UPDATE t SET j = NULL;
UPDATE t SET j = '{"fresh": 1}', k = JSON_SET(k, '$[0]', REPEAT('long', 100));
DELETE FROM t;
