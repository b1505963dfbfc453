-- only: mariadb
SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10;
CREATE TABLE t(id INT PRIMARY KEY, v LONGTEXT);
INSERT INTO t VALUES (1, REPEAT('abc', 30)), (2, REPEAT('é', 40));
UPDATE t SET v = REPEAT('z', 50);
SET binlog_row_image = MINIMAL;
UPDATE t SET v = REPEAT('y', 30);
DELETE FROM t;
SET GLOBAL log_bin_compress = OFF, GLOBAL log_bin_compress_min_len = 256;
