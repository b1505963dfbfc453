-- only: mysql
-- since: mysql 8.0.29, other statements behind XA PREPARE
CREATE TABLE t(id INT PRIMARY KEY, v VARCHAR(9));
XA START 'x';
INSERT INTO t VALUES (1, 'a'), (2, 'b');
UPDATE t SET v = 'c' WHERE id = 1;
XA END 'x';
XA PREPARE 'x';
CREATE TABLE u(id INT PRIMARY KEY);
INSERT INTO u VALUES (9);
XA COMMIT 'x';
INSERT INTO t VALUES (3, 'd');
