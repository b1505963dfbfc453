-- Nobody writes to a target before the switch, which unlocks the account.
SET SESSION sql_log_bin = 0;
ALTER USER shop@'%' ACCOUNT LOCK;
