-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, CONCAT(REPEAT('[', 99), '1', REPEAT(']', 99))), (2, CONCAT(REPEAT('{"a":', 60), '"x"', REPEAT('}', 60)));
