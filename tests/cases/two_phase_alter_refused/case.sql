-- only: mariadb
CREATE TABLE t(id INT PRIMARY KEY);
SET binlog_alter_two_phase = ON;
ALTER TABLE t ADD COLUMN v INT, ALGORITHM=COPY;
