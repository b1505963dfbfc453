CREATE TABLE all_types (
  id INT PRIMARY KEY,
  flag BOOLEAN, tiny TINYINT, utiny TINYINT UNSIGNED, small SMALLINT, usmall SMALLINT UNSIGNED,
  medium MEDIUMINT, umedium MEDIUMINT UNSIGNED, plain INT, uplain INT UNSIGNED,
  big BIGINT, ubig BIGINT UNSIGNED,
  f FLOAT, d DOUBLE, price DECIMAL(10,2), wide DECIMAL(38,10), widest DECIMAL(65,30), whole DECIMAL(20,0),
  c CHAR(10), v VARCHAR(100), t TEXT, latin VARCHAR(20) CHARACTER SET latin1,
  b BINARY(4), vb VARBINARY(20), bl BLOB,
  day DATE, clock TIME, clock3 TIME(3), clock6 TIME(6),
  at0 DATETIME, at3 DATETIME(3), at4 DATETIME(4), at6 DATETIME(6),
  ts0 TIMESTAMP NULL, ts2 TIMESTAMP(2) NULL, ts3 TIMESTAMP(3) NULL, ts6 TIMESTAMP(6) NULL,
  yr YEAR, bit1 BIT(1), bit7 BIT(7), bit20 BIT(20), bit64 BIT(64),
  colour ENUM('red','green','it''s'), sizes SET('s','m','l'),
  doc JSON, shape GEOMETRY, place POINT, vec VECTOR(3)
);
INSERT INTO all_types VALUES (1,
  1, -128, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295,
  -9223372036854775808, 9223372036854775807,
  1.5, 0.1, 12345678.91, -1234567890123456789012345678.0123456789, 12345.678901234567890123456789012345, 18446744073709551615,
  'ä', 'say "hi"\n\t\\ 😀', 'text', 'naïve',
  x'00FF', x'DEADBEEF01', 'blob',
  '2024-02-29', '12:34:56', '23:59:59.123', '00:00:00.000001',
  '2024-02-29 12:34:56', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.7891', '2024-02-29 12:34:56.789123',
  '2024-02-29 12:34:56', '2024-02-29 12:34:56.78', '2024-02-29 12:34:56.700', '2024-02-29 12:34:56.789123',
  2024, 1, b'1010101', b'11110000111100001111', 18446744073709551615,
  'it''s', 's,l', '{"a": 2, "b": [1, "x", null, true, 1.5]}', ST_GeomFromText('LINESTRING(0 0,1 2)'), ST_SRID(POINT(3, 4), 4326), STRING_TO_VECTOR('[1,2.5,-3]'));
INSERT INTO all_types (id) VALUES (2);
INSERT INTO all_types (id, flag, tiny, ubig, f, d, price, wide, day, clock, clock6, at0, at3, at6, ts0, ts6, yr, bit1, bit7, bit64, colour, sizes, doc, place) VALUES (3,
  0, 127, 18446744073709551615, -3.4e38, 1.7976931348623157e308, -0.01, 0, '1000-01-01', '-838:59:59', '838:59:59', '1000-01-01 00:00:00', '9999-12-31 23:59:59.999', '1969-12-31 23:59:59.999999',
  '1970-01-01 00:00:01', '2038-01-19 03:14:07.999999', 1901, 0, 0, 1, 'red', '', '"x"', POINT(-1.5, 2));
UPDATE all_types SET v = 'changed', price = 0.00, flag = 0 WHERE id = 1;
UPDATE all_types SET id = 20 WHERE id = 2;
DELETE FROM all_types WHERE id = 3;
CREATE TABLE two_keys (region VARCHAR(20), number BIGINT UNSIGNED, amount DECIMAL(8,3) NOT NULL, made DATETIME(6) NOT NULL, PRIMARY KEY (number, region));
INSERT INTO two_keys VALUES ('eu', 7, 1.500, '2024-01-01 00:00:00'), ('us', 18446744073709551615, -1.500, '2024-01-01 00:00:00.5');
UPDATE two_keys SET region = 'asia', amount = 2 WHERE number = 7;
DELETE FROM two_keys WHERE number > 7;
CREATE TABLE `odd-name` (`key-id` INT PRIMARY KEY, `völlig` INT, `1st` VARCHAR(5), `a.b` DATE);
INSERT INTO `odd-name` VALUES (1, 2, 'x', '2024-01-01');
CREATE TABLE timed (at DATETIME(3), day DATE, stamp TIMESTAMP(6), price DECIMAL(10,2), PRIMARY KEY (at, day, stamp, price));
INSERT INTO timed VALUES ('2024-02-29 12:34:56.789', '2024-02-29', '2024-02-29 12:34:56.789123', 1.25);
