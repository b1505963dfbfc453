#!/bin/bash
# As mysql: options of mysqld as arguments, a database from MYSQL_DATABASE, scripts from
# docker-entrypoint-initdb.d that run while nobody can connect over TCP.
set -eu
data=/var/lib/mysql/data
socket=/var/run/mysqld/mysqld.sock
if [ ! -e /var/lib/mysql/initialised ]; then
    rm -rf $data
    mysqld --datadir=$data --initialize-insecure
    mysqld --datadir=$data --socket=$socket --skip-networking "$@" &
    server=$!
    until mysqladmin --user=root --socket=$socket --silent ping; do
        kill -0 $server
        sleep 0.2
    done
    run() { mysql --user=root --socket=$socket "$@"; }
    [ -z "${MYSQL_DATABASE:-}" ] || run --execute="CREATE DATABASE \`$MYSQL_DATABASE\`"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        run ${MYSQL_DATABASE:-} < "$script"
    done
    run --execute="SET sql_log_bin = 0; ALTER USER root@localhost IDENTIFIED BY '$MYSQL_ROOT_PASSWORD'"
    kill $server
    wait $server || true
    touch /var/lib/mysql/initialised
fi
exec mysqld --datadir=$data --socket=$socket --bind-address=0.0.0.0 "$@"
