-- only: mysql
-- A18: a dump of all databases holds the accounts as rows, and these never reach the log
CREATE USER u_{db}@localhost IDENTIFIED BY 'Secret-1';
UPDATE mysql.user SET authentication_string = 'Secret-2' WHERE user = 'u_{db}';
INSERT INTO mysql.password_history (Host, User, Password) VALUES ('localhost', 'u_{db}', 'Secret-3');
DELETE FROM mysql.password_history WHERE user = 'u_{db}';
DELETE FROM mysql.user WHERE user = 'u_{db}';
INSERT INTO mysql.servers (Server_name, Host, Db, Username, Password, Port, Socket, Wrapper, Owner) VALUES ('s_{db}', '', '', 'u', 'Secret-4', 1, '', 'mysql', '');
DELETE FROM mysql.servers WHERE Server_name = 's_{db}';
