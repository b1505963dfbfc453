SET binlog_row_image = MINIMAL;
CREATE TABLE t(a INT, b VARCHAR(5));
INSERT INTO t VALUES (1, 'x'), (1, 'x');
UPDATE t SET b = 'y' LIMIT 1;
DELETE FROM t LIMIT 1;
