CREATE TABLE t(id INT PRIMARY KEY, a CHAR(5) CHARACTER SET utf8mb4, b VARCHAR(300) CHARACTER SET utf8mb3, c VARCHAR(10) CHARACTER SET latin1, d CHAR(255) CHARACTER SET utf8mb4, e VARCHAR(10) CHARACTER SET ascii, f TEXT CHARACTER SET latin1, g LONGTEXT CHARACTER SET utf8mb4);
INSERT INTO t VALUES (1, 'aé€😀 ', REPEAT('é', 300), 'é€Ÿ', REPEAT('😀', 255), 'plain', CONVERT(0x8180418D8F909D USING latin1), 'text 😀');
INSERT INTO t VALUES (2, '', '', '', '', '', '', '');
INSERT INTO t VALUES (3, ' x  ', ' x  ', 'naïve', 'x', '~', 'ü', '');
