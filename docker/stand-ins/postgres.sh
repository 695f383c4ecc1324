#!/bin/sh
# Makes the cluster on the first start, as the public image does, then serves.
set -eu
chown postgres:postgres "$PGDATA"
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    file=$(mktemp)
    printf '%s' "$POSTGRES_PASSWORD" >"$file"
    chown postgres:postgres "$file"
    as_postgres initdb --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile "$file" --auth scram-sha-256 >/dev/null
    rm "$file"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB;" | as_postgres postgres --single -D "$PGDATA" postgres >/dev/null
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D "$PGDATA" -c listen_addresses='*' \
    -c unix_socket_directories=/tmp
