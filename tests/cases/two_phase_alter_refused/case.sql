-- only: mariadb
-- since: mariadb 10.8, binlog_alter_two_phase
CREATE TABLE t(id INT PRIMARY KEY);
SET binlog_alter_two_phase = ON;
ALTER TABLE t ADD COLUMN v INT, ALGORITHM=COPY;
