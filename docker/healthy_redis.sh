#!/bin/sh
# Whether Redis serves its users, asked as the one who may only look; the password comes by the environment of redis-cli alone.
REDISCLI_AUTH=$(cat /keys/viewer.password) redis-cli --user viewer --no-auth-warning ping | grep -qx PONG
