CREATE TABLE t(id INT PRIMARY KEY, a ENUM('я','ж') CHARACTER SET cp1251, b SET('表','ソ') CHARACTER SET sjis, c ENUM('å','ö') CHARACTER SET swe7);
INSERT INTO t VALUES (1, 'ж', '表,ソ', 'ö'), (2, NULL, '', 'å');
