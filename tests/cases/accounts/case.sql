-- A18: passwords and their hashes never reach the log
CREATE USER IF NOT EXISTS u_{db}@localhost IDENTIFIED BY 'Secret-1';
CREATE USER v_{db}@localhost;
ALTER USER u_{db}@localhost IDENTIFIED BY 'Secret-2';
RENAME USER v_{db}@localhost TO w_{db}@localhost;
CREATE ROLE r_{db};
GRANT r_{db} TO u_{db}@localhost;
GRANT SELECT ON {db}.* TO u_{db}@localhost;
REVOKE SELECT ON {db}.* FROM u_{db}@localhost;
DROP ROLE r_{db};
DROP USER u_{db}@localhost, w_{db}@localhost;
