CREATE TABLE t(id INT PRIMARY KEY, a ENUM('x','é','it''s') CHARACTER SET latin1, b SET('p','q','r','ü') CHARACTER SET utf8mb4, c ENUM('only'));
SET sql_mode='';
INSERT INTO t VALUES (1, 'é', 'p,r', 'only');
INSERT INTO t VALUES (2, 'it''s', '', NULL);
INSERT INTO t VALUES (3, 'not a label', 'ü,p', 'only');
