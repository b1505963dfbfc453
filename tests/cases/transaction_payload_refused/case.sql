-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY);
SET binlog_transaction_compression=ON;
INSERT INTO t VALUES (1);
