-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, '{"": 1, "é": 2, "\\u0000": 3, "b": 4, "aa": 5, "\\"q\\"": "\\\\ \\/ \\b\\f\\n\\r\\t"}'), (2, '"\\ud83d\\ude00"'), (3, '[]'), (4, '{}'), (5, 'null'), (6, '-0.0'), (7, '1e-20'), (8, '123456789012345678'), (9, '1.0');
