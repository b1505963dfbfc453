-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY, a VARCHAR(500));
SET GLOBAL log_bin_compress=ON;
INSERT INTO t VALUES (1, REPEAT('x', 400)), (2, REPEAT('y', 400));
UPDATE t SET a = REPEAT('z', 300) WHERE id = 1;
DELETE FROM t WHERE id = 2;
CREATE TABLE {db}.with_a_comment_so_long_that_the_statement_is_compressed_too(id INT PRIMARY KEY COMMENT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa');
SET GLOBAL log_bin_compress=OFF;
