CREATE TABLE t(id INT PRIMARY KEY, v VARCHAR(20));
INSERT INTO t VALUES (1, 'x');
SET binlog_format = STATEMENT;
UPDATE t SET v = 'secret value' WHERE id = 1;
