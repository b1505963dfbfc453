-- The accounts of the demo stack, as docs/operations.md describes them. Not in the binlog: each
-- server gets them from this file.
SET SESSION sql_log_bin = 0;
CREATE USER shardstream@'%' IDENTIFIED BY 'demo';
GRANT REPLICATION SLAVE, REPLICATION CLIENT, PROCESS, SELECT ON *.* TO shardstream@'%';
CREATE USER resharder@'%' IDENTIFIED BY 'demo';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, CREATE TEMPORARY TABLES, REFERENCES,
  SHOW VIEW, TRIGGER, EVENT, CREATE USER, PROCESS, CONNECTION_ADMIN, XA_RECOVER_ADMIN
  ON *.* TO resharder@'%';
CREATE USER shop@'%' IDENTIFIED BY 'demo';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO shop@'%';
-- The account of the pages behind the cache reads, and is never locked.
CREATE USER reader@'%' IDENTIFIED BY 'demo';
GRANT SELECT ON shop.* TO reader@'%';
GRANT SELECT ON performance_schema.replication_connection_configuration TO reader@'%';
GRANT SELECT ON performance_schema.replication_applier_filters TO reader@'%';
GRANT SELECT ON performance_schema.replication_applier_global_filters TO reader@'%';
