-- only: mariadb
-- since: mariadb 10.10, the type INET4
CREATE TABLE typed(id INT PRIMARY KEY, u UUID, a INET4, b INET6, n BINARY(16), k BINARY(4));
INSERT INTO typed VALUES (1, '123e4567-e89b-12d3-a456-426655440000', '1.2.3.0', '::1', '', ''), (2, '0190163d-8694-739b-aea5-966c26f8ad91', '255.255.255.255', 'fe80::1', NULL, NULL), (3, NULL, NULL, NULL, NULL, NULL), (4, '00000000-0000-0000-0000-000000000000', '0.0.0.0', '::', '', ''), (5, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '10.0.0.0', '::ffff:1.2.3.4', '', '');
UPDATE typed SET u = NULL, a = '9.8.7.6', b = '1:2:3:4:5:6:7:8' WHERE id = 1;
DELETE FROM typed WHERE id = 5;
