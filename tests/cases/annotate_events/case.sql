-- only: mariadb
SET binlog_annotate_row_events = ON;
CREATE TABLE t(id INT PRIMARY KEY);
INSERT INTO t VALUES (1) /* é */;
