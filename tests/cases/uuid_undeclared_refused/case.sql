-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY, ok BINARY(16), u UUID);
INSERT INTO t VALUES (1, 'x', UUID());
