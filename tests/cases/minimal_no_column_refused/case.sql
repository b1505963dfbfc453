-- only: mysql
CREATE TABLE t(a INT DEFAULT 5);
SET binlog_row_image='MINIMAL';
INSERT INTO t VALUES ();
