-- MariaDB has generated columns in some row images only, so its log has none.
CREATE TABLE t(id INT PRIMARY KEY, a INT, s INT GENERATED ALWAYS AS (a + 1) STORED, v INT GENERATED ALWAYS AS (a + 2) VIRTUAL);
INSERT INTO t(id, a) VALUES (1, 10);
UPDATE t SET a = 20;
