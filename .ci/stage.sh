# Sourced by run and full: stages with timing, a scratch folder, and processes
# that are ended by their id.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
started=()
summary=()

# ended runs at exit, whatever the reason.
ended() {
  local code=$?
  [ "$BASHPID" = $$ ] || exit $code # a child that was ended before it became its command
  for pid in ${started[@]+"${started[@]}"}; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in ${started[@]+"${started[@]}"}; do
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
  printf '%s\n' "" "summary:" ${summary[@]+"${summary[@]}"}
  [ $code = 0 ] && echo "total: ok in ${SECONDS} s" || echo "total: FAILED after ${SECONDS} s"
}
trap ended EXIT
trap 'exit 130' INT # not the code of the command before, which may be 0
trap 'exit 143' TERM

# cpu sets cpu_s to the CPU seconds that all ended children have used.
cpu() {
  times >"$work/times"
  cpu_s=$(tail -n 1 "$work/times" | awk '{for (i = 1; i <= 2; i++) {split($i, t, "m"); s += 60 * t[1] + t[2]}; printf "%d", s}')
}

# stage NAME COMMAND…: runs the command with -e in effect and prints how long it
# took. CPU time over wall time says how busy the machine was with other work.
stage() {
  local name=$1 begin=$SECONDS cpu_before took
  shift
  cpu
  cpu_before=$cpu_s
  echo "=== $name"
  "$@"
  cpu
  took="$((SECONDS - begin)) s, CPU $((cpu_s - cpu_before)) s"
  summary+=("  $name: $took")
  echo "--- $name: ok in $took"
}

# need COMMAND PACKAGE: installs the Debian package when the command is absent.
need() {
  command -v "$1" >/dev/null && return
  echo "installing $2"
  [ -n "${apt_updated:-}" ] || { apt-get -qq update; apt_updated=1; }
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$2" >/dev/null
}

# venv NAME REQUIREMENT…: makes a Python environment in $work/NAME.
venv() {
  local name=$1
  shift
  python3 -m venv "$work/$name"
  "$work/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# serve ARGUMENT…: starts the server on a free port and sets TRCTL_URL and
# server (its process id).
serve() {
  local log=$work/serve.out
  : >"$log"
  "$work/trctl" serve --listen 127.0.0.1:0 --log-level warn "$@" >"$log" 2>"$work/serve.err" &
  server=$!
  started+=("$server")
  for _ in $(seq 200); do
    TRCTL_URL=$(sed -n 's/^trctl .* serves on \(http.*\)$/\1/p' "$log")
    [ -n "$TRCTL_URL" ] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
  done
  if [ -z "$TRCTL_URL" ]; then
    echo "the server did not start:" >&2
    cat "$log" "$work/serve.err" >&2
    return 1
  fi
  export TRCTL_URL
  echo "server $server on $TRCTL_URL"
}

# stop_server: the server must end with 0 on SIGTERM.
stop_server() {
  kill -TERM "$server"
  wait "$server"
  started=()
  unset TRCTL_URL # eval would measure the server that is gone
  if [ -s "$work/serve.err" ]; then
    echo "the server complained:"
    cat "$work/serve.err"
  fi
}
