-- only: mariadb
-- since: mariadb 10.7, the type UUID
CREATE TABLE t(id INT PRIMARY KEY, ok BINARY(16), u UUID);
INSERT INTO t VALUES (1, 'x', UUID());
