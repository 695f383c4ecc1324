#!/bin/sh
# Writes .env with fresh keys for docker-compose.yml. Never overwrites one: the database and the secrets in it were made
# with those keys.
set -eu
cd "$(dirname -- "$0")/.."
if [ -e .env ]; then
    echo ".env is there already; nothing was changed" >&2
    exit 0
fi
key() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat >.env <<KEYS
POSTGRES_PASSWORD=$(key)
ALLPASS_SECRET_KEY=$(key)
ALLPASS_S3_SECRET_KEY=$(key)
EMULATED_KEY=$(key)
KEYS
echo "wrote .env; keep a copy of ALLPASS_SECRET_KEY: stored secrets open with nothing else"
