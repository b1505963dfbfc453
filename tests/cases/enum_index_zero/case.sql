CREATE TABLE t(id INT PRIMARY KEY, e ENUM('', 'a', 'it''s', 'x,y'));
SET sql_mode = '';
INSERT INTO t VALUES (1, 'nothing'), (2, ''), (3, 'it''s'), (4, 'x,y'), (5, 2), (6, NULL);
