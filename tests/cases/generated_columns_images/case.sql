-- MySQL logs a generated column wherever it changes; MariaDB never a VIRTUAL one.
CREATE TABLE t(id INT PRIMARY KEY, a INT, b INT, s INT AS (a + 1) STORED, v TEXT AS (a + 2) VIRTUAL);
SET binlog_row_image = MINIMAL;
INSERT INTO t(id, a) VALUES (1, 10);
UPDATE t SET a = 20;
UPDATE t SET b = 5;
SET binlog_row_image = NOBLOB;
UPDATE t SET a = 30;
DELETE FROM t;
