-- only: mysql
-- since: mysql 8.0.30, sql_generate_invisible_primary_key
SET sql_generate_invisible_primary_key=ON;
CREATE TABLE t(v INT);
INSERT INTO t VALUES (7), (8);
DELETE FROM t WHERE v = 7;
