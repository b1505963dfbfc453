-- only: mysql
CREATE TABLE t(id INT PRIMARY KEY, j JSON);
INSERT INTO t VALUES (1, '{"b": [1, -2, 3.5, true, false, null], "a": "text \\"quoted\\" \\\\ \\n", "long key": {}}');
INSERT INTO t VALUES (2, '[]'), (3, '"plain"'), (4, '18446744073709551615'), (5, '-9223372036854775808'), (6, 'null'), (7, NULL);
INSERT INTO t VALUES (8, JSON_OBJECT('dec', CAST(12.50 AS DECIMAL(10,2)), 'date', DATE'2024-02-29', 'time', TIME'-12:34:56.5', 'dt', TIMESTAMP'2024-02-29 01:02:03.000004', 'big', CAST(-0.5 AS DECIMAL(65,30))));
INSERT INTO t VALUES (9, '[32767, 32768, -32768, -32769, 65535, 65536, 2147483647, 2147483648, 4294967295, 4294967296]');
INSERT INTO t VALUES (10, JSON_OBJECT('bits', b'101', 'blob', x'00FF10'));
