#!/bin/bash
# As postgres: a superuser's password from POSTGRES_PASSWORD, scripts from docker-entrypoint-initdb.d.
set -eu
programs=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
if [ ! -e $data/PG_VERSION ]; then
    install --directory --owner postgres $data /var/run/postgresql
    password=$(mktemp)
    echo "$POSTGRES_PASSWORD" > "$password"
    chown postgres "$password"
    as_postgres "$programs/initdb" --username=postgres --auth-host=scram-sha-256 \
        --encoding=UTF8 --locale=C.UTF-8 --pwfile="$password" $data
    rm "$password"
    echo 'host all all all scram-sha-256' >> $data/pg_hba.conf
    as_postgres "$programs/pg_ctl" -D $data -o "-c listen_addresses=''" -w start
    for script in /docker-entrypoint-initdb.d/*.sql; do
        as_postgres psql --username=postgres --set=ON_ERROR_STOP=1 --file="$script"
    done
    as_postgres "$programs/pg_ctl" -D $data -w stop
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups \
    "$programs/postgres" -D $data -c listen_addresses='*'
