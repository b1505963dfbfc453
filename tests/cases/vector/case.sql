-- only: mysql
-- since: mysql 9.0, the type VECTOR
CREATE TABLE t(id INT PRIMARY KEY, a VARCHAR(9), p VECTOR(2), q VECTOR, b TEXT CHARACTER SET latin1);
INSERT INTO t VALUES (1, 'é', TO_VECTOR('[1,-2.5]'), TO_VECTOR('[0,1e10,3]'), 'ü'), (2, NULL, NULL, NULL, NULL);
UPDATE t SET p = TO_VECTOR('[3,4]') WHERE id = 1;
