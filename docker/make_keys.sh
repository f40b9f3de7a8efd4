#!/bin/sh
# Once, on the first start: fresh passwords and users, each file in the folder of the one service that reads it.
# /keys/redis, /keys/master, /keys/worker and /keys/viewer are volumes.
set -eu
umask 077
[ ! -e /keys/redis/users.acl ] || exit 0
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python3 -m es_queue.acl "$fresh/keys" >/dev/null
for user in master worker viewer; do
  cp "$fresh/keys/$user.password" "/keys/$user/$user.password"
done
cp "$fresh/keys/viewer.password" /keys/redis/viewer.password
cp "$fresh/keys/web.token" /keys/viewer/web.token
# Last, for it says that all the others are there.
cp "$fresh/keys/users.acl" /keys/redis/.users.acl
mv /keys/redis/.users.acl /keys/redis/users.acl
