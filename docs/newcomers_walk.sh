#!/usr/bin/env bash
# Runs the tutorial's commands as a newcomer would, and prints each command, its output and the time.
#   docs/newcomers_walk.sh [FOLDER]     in a clone of the repository; FOLDER is a new temporary folder unless given
set -uo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder" && cd "$folder" || exit 1
SECONDS=0
failed=0

step() { printf '\n== %s  [%d:%02d]\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }
homely() { sed -e "s#$folder#~#g" -e "s#$clone#~/es-queue#g"; }
typed() {
  printf '$ %s\n' "$*" | homely
  bash -c "$*" 2>&1 | homely | tail -n "${lines:-12}"
  local code=${PIPESTATUS[0]}
  [ "$code" = 0 ] || { echo "(ended with $code)"; failed=1; }
}
until_true() { # until_true SECONDS COMMAND…: polls
  local deadline=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "(not within its time: $*)"; failed=1; return 1; }
    sleep 0.2
  done
}
two_workers() { es-status longer | grep -q '2 living'; }
ended() { [ -e runs/longer/summary.json ]; }

step "install"
lines=3 typed python3 -m venv .venv
export PATH="$folder/.venv/bin:$PATH"
lines=1 typed pip install --quiet --disable-pip-version-check "'$clone[plot,video]'" "2>&1 | grep -v '^WARNING: Location' || true"

step "a trained CartPole"
lines=30 typed es-master --env CartPole-v1 --run first --seed 1

step "play it, film it"
typed es-play runs/first '| head -n 6'
typed es-play runs/first --record first.gif --episodes 1
typed ls -l first.gif "| awk '{print \$5, \$9}'"

step "draw it"
typed es-plot runs/first --out first.png

step "a second worker, joined by hand"
echo '$ es-master --env BipedalWalker-v2 --run longer --workers 1 --max-seconds 45 --final-episodes 10      # first terminal'
es-master --env BipedalWalker-v2 --run longer --workers 1 --max-seconds 45 --final-episodes 10 > longer.log 2>&1 &
until_true 30 grep -q '^ *join ' longer.log
sed -n '1,6p' longer.log | sed -e "s#$folder#~#g"
join=$(sed -n 's/^ *join *//p' longer.log)
echo "\$ $(sed "s#$folder#~#g" <<< "$join")      # second terminal"
$join --quiet > joined.log 2>&1 &
joined=$!
until_true 40 two_workers && echo "(it has joined)  [$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))]"
typed es-status longer
echo '$ ^C      # second terminal'
kill -INT "$joined"; wait "$joined"
until_true 120 ended
wait
tail -n 7 longer.log | sed -e "s#$folder#~#g"

step "an environment of their own"
sed -n '/^<!-- file: push.py -->$/,/^```$/p' "$clone/docs/tutorial.md" | sed '1,2d;$d' > push.py
echo "(push.py is that of the tutorial)"
lines=12 typed es-master --env push:Push-v0 --run push --seed 2 --max-seconds 60
typed es-play runs/push --episodes 3 --trust

step "done"
exit "$failed"
