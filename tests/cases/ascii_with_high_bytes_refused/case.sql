-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET ascii);
SET sql_mode='';
INSERT INTO t VALUES (1, 0xE9);
