-- only: mariadb
SET column_compression_threshold=10;
CREATE TABLE t(id INT PRIMARY KEY, p VARCHAR(100) COMPRESSED, q TEXT COMPRESSED CHARACTER SET latin1, r LONGBLOB COMPRESSED, s VARCHAR(1000) COMPRESSED CHARACTER SET sjis, u VARBINARY(255) COMPRESSED);
INSERT INTO t VALUES (1, 'x', 'é', x'00FF', '表', ''), (2, NULL, NULL, NULL, NULL, NULL), (3, '', '', '', '', x'00');
INSERT INTO t VALUES (4, REPEAT('ab', 40), REPEAT('é', 50), REPEAT(x'00', 60), REPEAT('表', 30), REPEAT('z', 255));
SET column_compression_zlib_wrap=ON;
UPDATE t SET p = REPEAT('c', 50), r = REPEAT('r', 300) WHERE id = 4;
