#!/bin/sh
# Writes .env with fresh keys for docker-compose.yml. Never overwrites one: the database and the secrets in it were made
# with those keys.
#
#   sh scripts/compose-env.sh                                # the stack with emulated companies
#   sh scripts/compose-env.sh --real allpass.example.com     # compose.real.yml, at this name: also providers.env, allpass.env
set -eu
cd "$(dirname -- "$0")/.."
wrong() { printf 'error: %s\n' "$1" >&2; exit 2; }

DOMAIN=
case ${1:-} in
    "") ;;
    --real)
        DOMAIN=${2:-}
        case $DOMAIN in
            "") wrong "--real takes the name at which the API is to be reached, such as allpass.example.com" ;;
            *[!A-Za-z0-9.-]* | -* | .* | *. | *..*) wrong "--real $DOMAIN is no name of a host; give it without https:// or a path" ;;
            *[!0-9.]*.*) ;;
            *) wrong "--real $DOMAIN: certificates are given to names, not to addresses or hosts without a domain" ;;
        esac
        ;;
    *) wrong "$1 is not known; there is --real NAME" ;;
esac
[ "$#" -le 2 ] || wrong "one name, please: $*"

if [ -e .env ]; then
    if [ -n "$DOMAIN" ] && ! grep -q "^ALLPASS_DOMAIN=$DOMAIN\$" .env; then
        wrong ".env is there already and is not for $DOMAIN; move it away (its keys open what its database holds)"
    fi
    echo ".env is there already; nothing was changed" >&2
    exit 0
fi
key() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
{
    printf 'POSTGRES_PASSWORD=%s\nALLPASS_SECRET_KEY=%s\nALLPASS_S3_SECRET_KEY=%s\n' "$(key)" "$(key)" "$(key)"
    if [ -n "$DOMAIN" ]; then
        printf 'COMPOSE_FILE=compose.real.yml\nALLPASS_DOMAIN=%s\n' "$DOMAIN"
    else
        printf 'EMULATED_KEY=%s\n' "$(key)"
    fi
} >.env
echo "wrote .env; keep a copy of ALLPASS_SECRET_KEY: stored secrets open with nothing else"
[ -n "$DOMAIN" ] || exit 0

[ -e allpass.env ] || echo "# Any other setting of .env.example, for all processes of Allpass." >allpass.env
[ -e providers.env ] || cat >providers.env <<KEYS
# Keys of the companies to rent from; without a key a company is absent. Only the control loops see this file.
#ALLPASS_MODAL_TOKEN_ID=
#ALLPASS_MODAL_TOKEN_SECRET=
#ALLPASS_VAST_API_KEY=
#ALLPASS_LAMBDA_API_KEY=
#ALLPASS_LAMBDA_SSH_KEY=
#ALLPASS_RUNPOD_API_KEY=
KEYS
echo "wrote allpass.env and providers.env: put the keys of at least one company into providers.env, then"
echo "  docker compose up --build --detach --wait"
