-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, '{"b": [1, 2],   "a": "kept as written"}');
