#!/usr/bin/env bash
# From a running server to a firing seen, with nothing but curl: make a timer, wait until it has run, show the run, delete it.
#   ksana serve
#   ksana echo
#   examples/quickstart.sh
set -euo pipefail
base=${KSANA_URL:-http://127.0.0.1:7100}
target=${TARGET_URL:-http://127.0.0.1:7101}
auth=()
if [ -n "${KSANA_API_KEY:-}" ]; then auth=(-H "Authorization: Bearer $KSANA_API_KEY"); fi
ask() { curl -sS --fail "${auth[@]+"${auth[@]}"}" -H 'Content-Type: application/json' "$@"; }

echo "make a timer that calls $target/example every second"
timer=$(ask "$base/jobs" -d '{
  "name": "example",
  "schedule": {"kind": "every", "every": "1s"},
  "http": {"url": "'"$target"'/example"}
}')
id=$(sed 's/^{"id":"\([^"]*\)".*/\1/' <<<"$timer")
task=$(sed 's/.*"task_id":\([0-9]*\).*/\1/' <<<"$timer")
trap 'ask -X DELETE "$base/jobs/$id"' EXIT

echo "wait for its first run"
until ask "$base/jobs/$id" | grep -q '"last_status":"success"'; do sleep 0.2; done

echo "the run:"
ask "$base/api/v1/tasks/$task/runs?page_size=1" | tr ',' '\n' | grep -E '"(scheduled_time|start_time|end_time|final_status|response_code)"' |
    sort -u
