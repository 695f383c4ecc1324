#!/bin/sh
# Proves docker-compose.yml: the commands of docs/guides/compose.md are run as they stand there, in a copy of this
# checkout; three API replicas serve on the one port, and no machine notices; the main job moves from the serverless to
# the marketplace emulator and ends; a killed leader is replaced; nothing is lost.
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

# All that tells this stack from one that a reader of the guide brings up: its name.
export COMPOSE_PROJECT_NAME=allpass-verify
compose() { "$DOCKER" compose "$@"; }
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

# What is under version control here, as it is here now: .env of the guide's first command is written into the copy.
make_checkout() {
    rm -rf "$WORK/checkout"
    mkdir -p "$WORK/checkout"
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create | tar --directory "$WORK/checkout" --extract
    cd "$WORK/checkout"
    # A small budget and a plain rule: the main job moves after a few seconds, whatever it would gain.
    export ALLPASS_SERVERLESS_BUDGET_S=5 ALLPASS_POLICY=fixed-threshold
}

# The commands of the guide's first block, without their comments.
guide() { awk '/^```sh$/ { open = 1; next } /^```$/ { if (open) exit } open' docs/guides/compose.md | sed 's/ *#.*//'; }

# One of them, run as it stands there: named by how it begins.
as_the_guide_says() {
    line=$(guide | grep -F -- "$1") || fail "docs/guides/compose.md has no command with '$1'"
    say "$line"
    sh -euc "$(printf '%s' "$line" | sed 's/ run --rm / run --rm --no-TTY /')" || fail "$line"
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
    patience=$1 steps=$3
    shift
    arrive "$(submit "$@")" "$patience" "$steps"
}

arrive() { # job, seconds, its last step
    await_end "$1" "$2"
    client show "$1"
    told=$(client show --json "$1" |
        field '" ".join([stay["tier"] for stay in d["timeline"]["stays"]] + [str(d["job"]["step"])])')
    [ "$told" = "serverless marketplace $3" ] || fail "the job's tiers and last step are: $told"
}

# shellcheck disable=SC2016 # the container's own variable
sql() {
    compose exec -T postgres sh -c 'PGPASSWORD=$POSTGRES_PASSWORD exec psql -h 127.0.0.1 -U allpass -Atc "$0" allpass' "$1"
}

start_engine
"$DOCKER" compose version >/dev/null 2>&1 || { echo "the compose plugin of docker is missing" >&2; exit 1; }
make_checkout
if ! "$DOCKER" image inspect postgres:17 >/dev/null 2>&1 && ! timeout 60 "$DOCKER" pull --quiet postgres:17 >/dev/null 2>&1; then
    make_base
    export COMPOSE_FILE=docker-compose.yml:docker/stand-ins/override.yml
fi
serve_wheels

as_the_guide_says "compose-env.sh"
as_the_guide_says "up --build"
compose ps
as_the_guide_says "client run"
as_the_guide_says "client ps"
as_the_guide_says "client cost"

say "the main job"
travel 180 plain_loop.py 600 50
if [ -n "${MACHINE_PACKAGES:-}" ]; then
    say "a training: examples/train.py"
    travel 600 train.py 280 100 --template /examples/template.json
fi

say "three replicas of the API, while a job runs"
job=$(submit plain_loop.py 600 50)
machines=$(compose ps --quiet modal vast lambda)
as_the_guide_says "api=3"
[ "$(compose ps --quiet api | wc -l)" = 3 ] || fail "there are not three replicas"
[ "$(compose ps --quiet modal vast lambda)" = "$machines" ] || fail "the emulators were replaced, with the machines in them"
arrive "$job" 180 600
python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:7700/readyz', timeout=5)" ||
    fail "nothing answers at the port that the guide names"

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
as_the_guide_says "down"
say "all good"
