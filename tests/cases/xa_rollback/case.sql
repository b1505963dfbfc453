-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY);
XA START 'x', 'branch', 7;
INSERT INTO t VALUES (1);
XA END 'x', 'branch', 7;
XA PREPARE 'x', 'branch', 7;
XA ROLLBACK 'x', 'branch', 7;
INSERT INTO t VALUES (2);
