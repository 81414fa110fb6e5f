# Sourced by run.sh and upgrade.sh: the cluster that README's section makes, and a client
# that streams from it.

# prepare: the machines, a Python with the client's package, the binary under test.
prepare() {
  make_machines
  export PATH=$work/bin:$PATH
  [ -n "${PYTHON:-}" ] || { python3 -m venv "$work/python"; PYTHON=$work/python/bin/python; "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$root/test/sdk/python/requirements.txt"; }
  [ -n "${TRCTL:-}" ] || { TRCTL=$work/trctl; (cd "$root" && go build -o "$TRCTL" ./cmd/trctl); }
  ln -s "$(realpath "$TRCTL")" "$work/bin/trctl"

  # What must be in no log, metric, state or file of any node: bytes of prompts, of headers,
  # of keys and of tokens.
  CANARY=canary-$(tr -dc a-z0-9 </dev/urandom | head -c 16 || true)
  export CANARY TRCTL_LOG_LEVEL=debug
}

# follow_readme: its blocks, each on the machines that it names. What does not end by
# itself is a node.
follow_readme() {
  local machine block command script
  while IFS=$'\t' read -r machine block; do
    script=
    while IFS= read -r command; do
      case $command in
      "trctl cluster init"* | "trctl cluster join"* | "trctl worker join"* | "trctl gateway join"*) start "$machine" "$command" ;;
      *) script+=$command$'\n' ;;
      esac
    done < <(tr '\037' '\n' <<<"$block")
    [ -n "$script" ] || continue
    case $script in
    *curl*) until_ready ;;
    esac
    say "on $machine: ${script//$'\n'/; }"
    on "$machine" bash -euo pipefail -c "$script" >"$work/said" || { cat "$work/said"; return 1; }
    # To be copied to the machines that join.
    cp "$work/a/home/"*.token "$work/b/home/"
    cp "$work/a/home/"*.token "$work/c/home/"
  done < <(python3 "$here/commands.py" "$root/README.md")
  grep -q '^data: \[DONE\]' "$work/said" || { echo "README's question was not answered:"; cat "$work/said"; return 1; }
}

# until_ready waits for what the section sets up: three voters, four replicas, a
# deployment that both gateways serve.
until_ready() {
  until_true "three control nodes vote" voters_are 3
  until_true "all replicas are ready" replicas_are 4
  until_true "gateway a is ready" ready a
  until_true "gateway b is ready" ready b
}

operate() { on a trctl "$@"; }
ready() { in_lan curl --silent --fail --max-time 2 --output /dev/null "http://$(address "$1"):8000/readyz"; }
voters_are() { [ "$(operate cluster status -o json | read_json 'sum(s["voter"] for s in it["consensus"]["servers"])')" = "$1" ]; }
replicas_are() { [ "$(operate get placements -o json | read_json 'sum(r["phase"] == "ready" for r in it)')" = "$1" ]; }
leader() { operate cluster status -o json | read_json 'it["consensus"]["leader"]'; }

# read_json EXPRESSION: of `it`, the JSON on standard input.
read_json() { python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }

# tell COMMAND…: to the client that streams; its answer must be no failure.
tell() {
  local said
  echo "$*" >&"${CLIENT[1]}"
  if ! IFS= read -r -t 60 said <&"${CLIENT[0]}"; then
    echo "the client has ended at: $*"
    return 1
  fi
  say "$* -> $said"
}

# start_client: an API key, the texts of an undisturbed run, and streams from now on.
start_client() {
  KEY=$(operate key create --name clients)
  GATEWAYS=http://$(address a):8000,http://$(address b):8000
  export KEY GATEWAYS
  in_lan "$PYTHON" "$here/client.py" record "$work/texts.json"
  coproc CLIENT { in_lan "$PYTHON" "$here/client.py" disturb "$work/texts.json" 2>"$work/client.err"; }
  client=$CLIENT_PID
  others+=("$client")
}

# stop_client: the streams end; one that failed, or had another text, fails the run.
stop_client() {
  echo stop >&"${CLIENT[1]}"
  cat <&"${CLIENT[0]}" || true
  wait "$client" || { cat "$work/client.err"; exit 1; }
}
