-- only: mariadb
-- since: mariadb 10.7, the type UUID
CREATE TABLE typed(u UUID PRIMARY KEY, n INT);
INSERT INTO typed VALUES ('123e4567-e89b-12d3-a456-426655440000', 1);
UPDATE typed SET n = 2;
UPDATE typed SET u = '0190163d-8694-739b-aea5-966c26f8ad91';
DELETE FROM typed;
