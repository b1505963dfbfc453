-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY);
SET SESSION original_commit_timestamp = 0;
INSERT INTO t VALUES (1);
