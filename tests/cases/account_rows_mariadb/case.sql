-- only: mariadb
-- A18: a dump of all databases holds the accounts as rows, and these never reach the log
INSERT INTO mysql.global_priv VALUES ('localhost', 'u_{db}', '{"authentication_string": "Secret-1"}');
UPDATE mysql.global_priv SET Priv = '{"authentication_string": "Secret-2"}' WHERE User = 'u_{db}';
DELETE FROM mysql.global_priv WHERE User = 'u_{db}';
INSERT INTO mysql.servers (Server_name, Host, Db, Username, Password, Port, Socket, Wrapper, Owner) VALUES ('s_{db}', '', '', 'u', 'Secret-4', 1, '', 'mysql', '');
DELETE FROM mysql.servers WHERE Server_name = 's_{db}';
