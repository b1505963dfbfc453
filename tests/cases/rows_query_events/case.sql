-- only: mysql
SET binlog_rows_query_log_events = ON;
CREATE TABLE t(id INT PRIMARY KEY);
INSERT INTO t VALUES (1) /* é */;
DELETE FROM t;
