CREATE TABLE t(id INT PRIMARY KEY, a INT, c TEXT, d BLOB);
INSERT INTO t VALUES (1, 10, 'long', 'blob');
SET binlog_row_image='NOBLOB';
UPDATE t SET a = 11 WHERE id = 1;
UPDATE t SET c = 'longer' WHERE id = 1;
DELETE FROM t WHERE id = 1;
