-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY, j JSON, k JSON);
INSERT INTO t VALUES (1, '{"b": 1, "a": [1,  2.50, null]}', '"é😀"'), (2, NULL, 'null');
UPDATE t SET j = JSON_SET(j, '$.c', TRUE) WHERE id = 1;
