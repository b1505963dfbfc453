-- only: mariadb
-- since: mariadb 10.10, the type INET4
CREATE TABLE t(a INET4 PRIMARY KEY);
INSERT INTO t VALUES ('1.2.3.4');
