# Sourced by run.sh and upgrade.sh: machines that are network namespaces, nodes that run on them, and
# their end, whatever the reason.

machines=(a b c)
net=trctl-$$
declare -A pids hosts commands metrics # by node
declare -A builds                       # by node: the folder of its trctl, if it is not that on PATH
nodes=()
others=() # process ids besides
work=

say() { echo "[${SECONDS} s] $*"; }

skip() {
  echo "skipped: $*"
  exit 0
}

# make_machines: a, b and c on one bridge, each with a name, a home and a /var/lib of its
# own. Nothing outside of the namespaces changes.
make_machines() {
  local i machine
  [ "$(id -u)" = 0 ] || skip "needs root"
  command -v ip >/dev/null || skip "there is no ip (package iproute2)"
  command -v unshare >/dev/null || skip "there is no unshare (package util-linux)"
  ip netns add "$net-lan" 2>/dev/null || skip "network namespaces cannot be made here"
  work=$(mktemp -d)
  trap clean EXIT
  mkdir "$work/bin"
  ip -n "$net-lan" link add name lan type bridge 2>/dev/null || skip "bridges cannot be made here"
  ip -n "$net-lan" addr add 10.77.0.1/24 dev lan
  ip -n "$net-lan" link set dev lan up
  ip -n "$net-lan" link set lo up
  echo "127.0.0.1 localhost" >"$work/hosts"
  for i in "${!machines[@]}"; do
    machine=${machines[$i]}
    ip netns add "$net-$machine"
    ip -n "$net-lan" link add name "$machine" type veth peer name eth0 netns "$net-$machine"
    ip -n "$net-lan" link set dev "$machine" master lan up
    ip -n "$net-$machine" addr add "10.77.0.$((11 + i))/24" dev eth0
    ip -n "$net-$machine" link set eth0 up
    ip -n "$net-$machine" link set lo up
    echo "10.77.0.$((11 + i)) $machine" >>"$work/hosts"
    mkdir -p "$work/$machine/lib" "$work/$machine/home"
    mkdir -m 700 "$work/$machine/run"
  done
}

# clean ends every process that was started, by its id, and takes the machines away.
clean() {
  local code=$? pid machine
  # A child that is ended before it has become its command may still have this trap.
  [ "$BASHPID" = $$ ] || exit $code
  trap - EXIT
  for pid in "${pids[@]}" "${others[@]}"; do
    kill -KILL "$pid" 2>/dev/null || true
  done
  wait 2>/dev/null || true
  if [ $code != 0 ]; then
    for node in "${nodes[@]}"; do
      echo "--- the end of the log of $node"
      tail -n 15 "$work/log.$node" | cut -c 1-400
    done
    # The reason comes last, where it is not lost above the logs.
    echo "--- why it failed"
    [ ! -s "$work/client.err" ] || cut -c 1-2000 "$work/client.err"
    echo "ended with $code after $SECONDS s"
  fi
  for machine in "${machines[@]}" lan; do
    ip netns del "$net-$machine" || true
  done
  if [ "${KEEP:-}" = 1 ]; then
    echo "left: $work"
  else
    rm -rf "$work"
  fi
  exit $code
}

# address MACHINE
address() { awk -v name="$1" '$2 == name {print $1}' "$work/hosts"; }

in_lan() { ip netns exec "$net-lan" "$@"; }

# enter MACHINE COMMAND…: becomes the command, in the machine's network and with its
# files. The process id stays the same.
enter() {
  local machine=$1
  shift
  # shellcheck disable=SC2016
  XDG_RUNTIME_DIR=$work/$machine/run exec ip netns exec "$net-$machine" unshare --mount --uts -- bash -euc '
    work=$1 machine=$2
    shift 2
    hostname "$machine"
    mount --bind "$work/hosts" /etc/hosts
    mount --bind "$work/$machine/lib" /var/lib
    cd "$work/$machine/home"
    exec "$@"' enter "$work" "$machine" "$@"
}

# on MACHINE COMMAND…: runs the command there.
on() { (enter "$@"); }

# start MACHINE COMMAND: a node. Its name here is the machine's and a number.
start() {
  local node=$1-$((${#nodes[@]} + 1))
  nodes+=("$node")
  hosts[$node]=$1
  commands[$node]=$2
  metrics[$node]=127.0.0.1:$((9100 + ${#nodes[@]}))
  say "$node: $2"
  launch "$node"
  # The next commands need what the first one makes.
  until_true "$node is up" up "$node"
}

launch() {
  local node=$1
  PATH=${builds[$node]:+${builds[$node]}:}$PATH TRCTL_METRICS_LISTEN=${metrics[$node]} enter "${hosts[$node]}" bash -c "exec ${commands[$node]}" >"$work/out.$node" 2>>"$work/log.$node" </dev/null &
  pids[$node]=$!
}

restart() {
  launch "$1"
  until_true "$1 is up again" up "$1"
}

# up NODE: it has said that it runs, and the process id is its own. One that has ended
# never will.
up() {
  kill -0 "${pids[$1]}" 2>/dev/null || { echo "$1 has ended"; exit 1; }
  grep -q '^trctl .* runs ' "$work/out.$1" && [ "$(cat "/proc/${pids[$1]}/comm")" = trctl ]
}

# ended NODE CODE: waits for its end, 15 s at most.
ended() {
  local pid=${pids[$1]} code=0 deadline=$((SECONDS + 15))
  while kill -0 "$pid" 2>/dev/null; do
    if [ $SECONDS -ge $deadline ]; then
      echo "$1 has not ended within 15 s"
      return 1
    fi
    sleep 0.05
  done
  wait "$pid" 2>/dev/null || code=$?
  [ "$code" = "$2" ] || { echo "$1 has ended with $code, not $2"; return 1; }
}

# until_true WHAT COMMAND…: waits, 40 s at most.
until_true() {
  local what=$1 deadline=$((SECONDS + 40))
  shift
  until "$@" 2>"$work/why"; do
    if [ $SECONDS -ge $deadline ]; then
      echo "waited in vain: $what"
      cat "$work/why"
      return 1
    fi
    sleep 0.2
  done
}

# node_of MACHINE MODEL: the worker that was started with the model.
node_of() {
  local node
  for node in "${nodes[@]}"; do
    if [ "${hosts[$node]}" = "$1" ] && [[ ${commands[$node]} == *"--model $2"* ]]; then
      echo "$node"
      return
    fi
  done
  return 1
}

# node_named NAME: the node that has the name in the cluster.
node_named() {
  local node
  for node in "${nodes[@]}"; do
    if grep -qw -- "$1" "$work/out.$node"; then
      echo "$node"
      return
    fi
  done
  return 1
}
