CREATE TABLE t(id INT PRIMARY KEY, e ENUM('a','b'), s SET('x','y'));
INSERT INTO t VALUES (1, 'b', 'x,y');
ALTER TABLE t MODIFY e ENUM('z','a','b'), MODIFY s SET('w','x','y');
INSERT INTO t VALUES (2, 'b', 'w,y');
UPDATE t SET e = 'z' WHERE id = 1;
