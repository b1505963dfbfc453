-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY, a BINARY(16));
INSERT INTO t VALUES (1, 'x');
