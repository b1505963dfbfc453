-- only: mariadb
-- since: mariadb 11.2, character_set_collations
-- the client's character set stands behind MariaDB's own status variables
CREATE TABLE t(id INT PRIMARY KEY, a ENUM('x','é') CHARACTER SET latin1);
SET character_set_collations='utf8mb4=utf8mb4_general_ci,latin1=latin1_bin';
ALTER TABLE t COMMENT 'é';
SET NAMES latin1;
ALTER TABLE t COMMENT 'é';
