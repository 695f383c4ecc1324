#!/bin/sh
# Proves docker-compose.yml: the stack comes up healthy, the main job moves from the serverless to the marketplace
# emulator and ends, three API replicas serve, a killed leader is replaced, nothing is lost.
#
#   sh scripts/verify-compose.sh          # with a Docker engine and its compose plugin
#   MACHINE_PACKAGES="torch==2.13.0 transformers==5.23.0 peft==0.21.2" sh scripts/verify-compose.sh
#
# With MACHINE_PACKAGES the machines have these, and examples/train.py makes the same journey. MACHINE_WHEELS is the
# address of a page that links to wheels which no index has, or a folder of them where stand-ins are built (below).
#
# Where no engine runs, and this is root, one is started for the time of the run, in a folder of its own. Where no
# registry can be reached, stand-ins for the public images are made with debootstrap. DOCKER names the docker command;
# WORK is where all of it lies (kept for the next run: set it to an empty folder for a fresh one).
set -eu
cd "$(dirname -- "$0")/.."
DOCKER=${DOCKER:-docker}
WORK=${WORK:-${TMPDIR:-/tmp}/allpass-verify-compose}
mkdir -p "$WORK"
ENGINE_PID=
WHEELS_PID=

say() { printf '\n== %s\n' "$*"; }
fail() {
    say "FAILED: $*"
    compose logs --tail 40 2>&1 | tail -n 120 || true
    exit 1
}

files="--file docker-compose.yml"
# shellcheck disable=SC2086 # several words on purpose
compose() { "$DOCKER" compose --project-name allpass-verify --env-file "$WORK/env" $files "$@"; }
client() { compose run --rm --no-TTY client "$@"; }

clean_up() {
    compose --profile client down --volumes --timeout 5 >/dev/null 2>&1 || true
    if [ -n "$WHEELS_PID" ]; then
        kill "$WHEELS_PID" || true
    fi
    if [ -n "$ENGINE_PID" ]; then
        kill "$ENGINE_PID" && wait "$ENGINE_PID" || true
    fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM

start_engine() {
    export DOCKER_HOST="unix://$WORK/docker.sock"
    "$DOCKER" info >/dev/null 2>&1 && return
    say "no engine answers; starting one in $WORK"
    dockerd --data-root "$WORK/data" --exec-root "$WORK/exec" --pidfile "$WORK/pid" --host "$DOCKER_HOST" \
        --exec-opt native.cgroupdriver=cgroupfs --default-ulimit nofile=1024:4096 >"$WORK/engine.log" 2>&1 &
    ENGINE_PID=$!
    for _ in $(seq 60); do
        "$DOCKER" info >/dev/null 2>&1 && return
        kill -0 "$ENGINE_PID" 2>/dev/null || break
        sleep 1
    done
    tail -n 5 "$WORK/engine.log"
    echo "no Docker engine runs here, and none could be started (that takes root and dockerd)" >&2
    exit 1
}

# A Debian with Python under the public name, with this host's certificates and pip settings.
make_base() {
    "$DOCKER" image inspect python:3.11-slim >/dev/null 2>&1 && return
    say "no registry can be reached; making a stand-in for python:3.11-slim"
    root="$WORK/base"
    [ -x "$root/usr/bin/python3" ] ||
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >"$WORK/base.log"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$root/etc/pip.conf"
    tar --directory "$root" --exclude ./proc/* --exclude ./sys/* --create . | "$DOCKER" import - python:3.11-slim >/dev/null
}

# A folder of wheels becomes a page on the loopback, which builds with the host's network reach. The same port each time:
# its address is part of what the engine knows a finished step by.
serve_wheels() {
    [ -d "${MACHINE_WHEELS:-}" ] || return 0
    [ -e "$WORK/wheels.port" ] || echo 0 >"$WORK/wheels.port"
    : >"$WORK/wheels.log"
    python3 -u -m http.server --bind 127.0.0.1 --directory "$MACHINE_WHEELS" "$(cat "$WORK/wheels.port")" \
        >"$WORK/wheels.log" 2>&1 &
    WHEELS_PID=$!
    for _ in $(seq 30); do
        port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$WORK/wheels.log")
        [ -z "$port" ] || break
        sleep 1
    done
    [ -n "$port" ] || fail "the wheels in $MACHINE_WHEELS are not served: $(cat "$WORK/wheels.log")"
    echo "$port" >"$WORK/wheels.port"
    export MACHINE_WHEELS="http://127.0.0.1:$port/"
}

write_env() {
    [ -e "$WORK/env" ] && return
    umask 077
    for name in POSTGRES_PASSWORD ALLPASS_SECRET_KEY ALLPASS_S3_SECRET_KEY EMULATED_KEY; do
        printf '%s=%s\n' "$name" "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')"
    done >"$WORK/env"
    # A small budget and a plain rule: the main job moves after a few seconds, whatever it would gain.
    printf 'ALLPASS_SERVERLESS_BUDGET_S=5\nALLPASS_POLICY=fixed-threshold\n' >>"$WORK/env"
}

field() { python3 -c "import json,sys; d=json.load(sys.stdin); print($1)"; }

submit() { # script, steps, milliseconds a step, more options
    script=$1 steps=$2 step_ms=$3
    shift 3
    client run "/examples/$script" --json --deadline 1h -p "steps=$steps" -p "step_ms=$step_ms" "$@" | field 'd["id"]'
}

await_end() { # job, seconds
    for _ in $(seq "$2"); do
        state=$(client show --json "$1" | field 'd["job"]["status"]')
        case $state in
            succeeded) return ;;
            failed | cancelled) fail "job $1 is $state" ;;
        esac
        sleep 1
    done
    fail "job $1 is still $state after $2 looks"
}

# Submit, and be satisfied when the job has begun on one tier, ended on the next, and done its last step.
travel() { # seconds, then as for submit
    patience=$1 wanted=$3
    shift
    job=$(submit "$@")
    await_end "$job" "$patience"
    client show "$job"
    told=$(client show --json "$job" |
        field '" ".join([stay["tier"] for stay in d["timeline"]["stays"]] + [str(d["job"]["step"])])')
    [ "$told" = "serverless marketplace $wanted" ] || fail "the job's tiers and last step are: $told"
}

# shellcheck disable=SC2016 # the container's own variable
sql() {
    compose exec -T postgres sh -c 'PGPASSWORD=$POSTGRES_PASSWORD exec psql -h 127.0.0.1 -U allpass -Atc "$0" allpass' "$1"
}

start_engine
"$DOCKER" compose version >/dev/null 2>&1 || { echo "the compose plugin of docker is missing" >&2; exit 1; }
if ! "$DOCKER" image inspect postgres:17 >/dev/null 2>&1 && ! timeout 60 "$DOCKER" pull --quiet postgres:17 >/dev/null 2>&1; then
    make_base
    files="$files --file docker/stand-ins/override.yml"
fi
write_env
serve_wheels

say "building, and bringing the stack up"
compose build --quiet
compose up --detach --wait --wait-timeout 300 || fail "the stack did not become healthy"
compose ps

say "the main job"
travel 180 plain_loop.py 600 50
if [ -n "${MACHINE_PACKAGES:-}" ]; then
    say "a training: examples/train.py"
    travel 600 train.py 280 100 --template /examples/template.json
fi

say "three replicas of the API"
compose up --detach --wait --wait-timeout 120 --no-recreate --scale api=3 || fail "three replicas did not become healthy"
[ "$(compose ps --quiet api | wc -l)" = 3 ] || fail "there are not three replicas"
client ps >/dev/null

say "killing the leader while a job runs"
job=$(submit plain_loop.py 600 50)
sleep 3
before=$(sql "select holder from leader_leases")
for container in $(compose ps --quiet control); do
    case $before in
        *"$("$DOCKER" inspect --format '{{.Config.Hostname}}' "$container")"*) killed=$container ;;
    esac
done
[ -n "${killed:-}" ] || fail "no container is the leader $before"
"$DOCKER" kill "$killed" >/dev/null
await_end "$job" 180
after=$(sql "select holder from leader_leases")
[ "$before" != "$after" ] || fail "the leader is still $after"

say "what is left"
client nodes
open=$(sql "select count(*) from nodes where state not in ('terminated', 'failed')")
[ "$open" = 0 ] || sleep 20
open=$(sql "select count(*) from nodes where state not in ('terminated', 'failed')")
[ "$open" = 0 ] || fail "$open machines are left"
say "all good"
