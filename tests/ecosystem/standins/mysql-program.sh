#!/bin/bash
# Runs a program of the unpacked packages by their own loader, as their libc is newer than the image's.
set -eu
root=/opt/mysql
name=$(basename "$0")
libraries=$(echo $root/lib/*-linux-gnu* $root/usr/lib/*-linux-gnu* $root/usr/lib/mysql/private | tr ' ' :)
loader=$(ls $root/lib/*-linux-gnu*/ld-linux*.so* $root/usr/lib/*-linux-gnu*/ld-linux*.so* 2>/dev/null | head -1)
run() { exec "$loader" --library-path "$libraries" "$@"; }
if [ "$name" = mysqld ]; then
    cat /etc/mysql/conf.d/*.cnf > /tmp/mysqld.cnf
    run $root/usr/sbin/mysqld --defaults-file=/tmp/mysqld.cnf --secure-file-priv= --lc-messages-dir=$root/usr/share/mysql \
        --character-sets-dir=$root/usr/share/mysql/charsets \
        --plugin-dir=$root/usr/lib/mysql/plugin "$@"
fi
run "$root/usr/bin/$name" --no-defaults --character-sets-dir=$root/usr/share/mysql/charsets "$@"
