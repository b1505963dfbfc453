CREATE USER IF NOT EXISTS u_{db}@localhost;
GRANT SELECT ON {db}.* TO u_{db}@localhost;
REVOKE SELECT ON {db}.* FROM u_{db}@localhost;
DROP USER u_{db}@localhost;
