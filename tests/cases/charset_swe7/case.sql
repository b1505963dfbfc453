CREATE TABLE t(id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET swe7, b CHAR(6) CHARACTER SET swe7);
INSERT INTO t VALUES (1, 'Smörgås', 'ÄÖÅÜÉé'), (2, 'abc', '123'), (3, '', 'åäö');
