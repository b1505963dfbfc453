-- only: mariadb
-- since: mariadb 10.10, the type INET4
CREATE TABLE typed(u UUID PRIMARY KEY, a INET4, b INET6, n INT);
SET binlog_row_image = 'MINIMAL';
INSERT INTO typed VALUES ('123e4567-e89b-12d3-a456-426655440000', '1.2.3.4', '::', 1);
UPDATE typed SET b = '::5';
UPDATE typed SET n = 2, a = NULL;
UPDATE typed SET u = '0190163d-8694-739b-aea5-966c26f8ad91';
DELETE FROM typed;
