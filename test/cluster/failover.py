"""Measures how long streams stall when a worker ends or falls silent.

    failover.py [--rounds N] [--streams N] [--only WHO-FAULT,…] [--settle S]

Runs a cluster of one machine on loopback, every node as a process: a control node, a
gateway, two workers of tiny-s (entries) and two of tiny-l (collaborators). Streams run
all the while. A round does something to one worker and notes, for every stream that was
midway, the longest time between two of its tokens that was going on then or began in
the seconds after. Faults:

    none    nothing: what the machine does by itself
    kill    SIGKILL; the worker is started again before the next round
    pause   SIGSTOP for 300 ms, which nobody may take for an end
    freeze  SIGSTOP until the round is over

Prints a table: per fault, the median, the 99th percentile and the longest of the
rounds' longest stalls in milliseconds; how many streams moved to another entry; and how
often, and how long after the fault, an entry gave up the link to that node or the
gateway a request there, by their logs. A stall is that, and the time to compute again
what was lost.
TRCTL is the binary (built if not given). Every answer is compared with the undisturbed
one; it ends with 1 if one differs or fails. Needs nothing but Python.
"""

import argparse
import datetime
import http.client
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WATCH_S = 2.5  # how long after a fault gaps count
PATIENCE_S = 40.0
PAUSE_S = 0.3
MIDWAY = 4  # tokens after which a stream is midway
QUESTIONS = ["What is 48 + 72 * 29?", "What is 381 * 27 + 55 * 13?", "What is 902 - 17 * 31?", "Count to twenty."]
FAULTS = ["entry-none", "collaborator-none", "entry-kill", "collaborator-kill", "entry-pause", "collaborator-pause", "entry-freeze", "collaborator-freeze"]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Node:
    """A process of trctl that can be started again."""

    def __init__(self, work: pathlib.Path, name: str, *arguments: str) -> None:
        self.name, self.work = name, work
        self.command = [os.environ["TRCTL"], *arguments, "--name", name, "--data", str(work / name), "--gossip", f"127.0.0.1:{free_port()}"]
        self.log = open(work / f"{name}.log", "ab")
        self.start()

    def start(self) -> None:
        environment = os.environ | {"XDG_RUNTIME_DIR": str(self.work)}
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env=environment)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Cluster:
    """The nodes, and an operator's commands."""

    def __init__(self, work: pathlib.Path) -> None:
        self.work = work
        self.nodes: dict[str, Node] = {}
        control = f"127.0.0.1:{free_port()}"
        self.public = free_port()
        self.start("control", "cluster", "init", "--listen", control, "--advertise", control)
        until("the control node leads", lambda: self.operate("cluster", "status", "-o", "json") is not None)
        for role, model in [("entry-1", "tiny-s"), ("entry-2", "tiny-s"), ("collaborator-1", "tiny-l"), ("collaborator-2", "tiny-l")]:
            at = f"127.0.0.1:{free_port()}"
            self.start(role, "worker", "join", "--join", control, "--token-file", self.token("worker", role), "--listen", at, "--advertise", at, "--model", model, "--workers", "1")
        self.start("gateway", "gateway", "join", "--join", control, "--token-file", self.token("gateway", "gateway"), "--listen", f"127.0.0.1:{self.public}")
        self.key = self.operate("key", "create", "--name", "failover").strip().splitlines()[-1]
        self.until_ready()
        until("the gateway is ready", lambda: http_get(self.public, "/readyz") == 200)

    def start(self, name: str, *arguments: str) -> None:
        self.nodes[name] = Node(self.work, name, *arguments)

    def token(self, role: str, name: str) -> str:
        file = self.work / f"{name}.token"
        file.write_text(self.operate("cluster", "token", "create", "--role", role))
        return str(file)

    def operate(self, *arguments: str) -> str | None:
        environment = os.environ | {"XDG_RUNTIME_DIR": str(self.work)}
        done = subprocess.run([os.environ["TRCTL"], *arguments], capture_output=True, text=True, env=environment, check=False)
        return done.stdout if done.returncode == 0 else None

    def until_ready(self) -> None:
        def ready() -> bool:
            said = self.operate("get", "placements", "-o", "json")
            return said is not None and sum(r["phase"] == "ready" for r in json.loads(said)) == 4

        until("four replicas are ready", ready)

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()


def until(what: str, ok) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ok():
        if time.monotonic() > deadline:
            sys.exit(f"waited in vain: {what}")
        time.sleep(0.05)


def http_get(port: int, path: str) -> int:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0


class Stream:
    """One answer that is being written."""

    def __init__(self) -> None:
        self.tokens = 0
        self.last = 0.0  # when the last one came
        self.gaps: list[tuple[float, float]] = []  # (begin, end) of those over 5 ms
        self.epoch = 1


class Load:
    """Threads that ask, one answer after another, and the streams that they read."""

    def __init__(self, cluster: Cluster, streams: int) -> None:
        self.cluster = cluster
        self.streams: list[Stream | None] = [None] * streams
        self.want: dict[int, str] = {}
        self.wrong: list[str] = []
        self.answers = 0
        self.stopping = False
        self.turn = itertools.count()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(streams)]

    def run(self, place: int) -> None:
        while not self.stopping:
            which = next(self.turn) % (2 * len(QUESTIONS))
            try:
                text = self.answer(place, which)
                if text != self.want.setdefault(which, text):
                    self.wrong.append(f"question {which}: {text!r}, undisturbed {self.want[which]!r}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.wrong.append(f"question {which}: {type(error).__name__}: {error}")
                time.sleep(0.2)
            self.answers += 1

    def answer(self, place: int, which: int) -> str:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": QUESTIONS[which // 2]}],
            "stream": True,
            "max_tokens": 400,
            "ignore_eos": True,
            "temperature": 0.9 * (which % 2),
            "seed": 100 + which,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.public, timeout=30)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {self.cluster.key}", "Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read()[:200]!r}")
        stream = Stream()
        self.streams[place] = stream
        text, finish = "", None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            chunk = json.loads(line[6:])
            for choice in chunk.get("choices", []):
                text += choice["delta"].get("content") or ""
                finish = choice.get("finish_reason") or finish
            stream.epoch = (chunk.get("trctl") or {}).get("epoch", stream.epoch)
            if stream.tokens and now - stream.last > 0.005:
                stream.gaps.append((stream.last, now))
            stream.tokens, stream.last = stream.tokens + 1, now
        self.streams[place] = None
        connection.close()
        if finish is None:
            raise ValueError(f"it ended after {len(text)} bytes without a finish_reason")
        return text

    def midway(self) -> list[Stream]:
        return [s for s in self.streams if s is not None and s.tokens >= MIDWAY]


class Round:
    """What a round has brought: times in seconds."""

    def __init__(self, stall: float, given_up: list[float], moved: int) -> None:
        self.stall, self.given_up, self.moved = stall, given_up, moved


def given_up(cluster: Cluster, node: str, since: float) -> list[float]:
    """How long after a time the others gave a node up, by their logs: links, and requests there."""
    out = []
    for file in cluster.work.glob("*.log"):
        for line in file.read_text(errors="replace").splitlines():
            if 'msg="peer link lost"' not in line and 'msg="request moves"' not in line:
                continue
            about = re.search(r"(?:peer|replica)=\S*" + node + r"(?:\s|$)", line.split("msg=", 1)[1].replace("replica=tiny-s-" + file.stem, ""))
            at = datetime.datetime.fromisoformat(re.match(r"time=(\S+)", line)[1]).timestamp()
            if about and since <= at < since + WATCH_S:
                out.append(at - since)
    return out


def one(cluster: Cluster, load: Load, who: str, fault: str, turn: int, settle: float) -> Round:
    """A round: its longest stall, when the node was given up, and how many streams moved."""
    time.sleep(settle)
    until("all streams are midway", lambda: len(load.midway()) == len(load.streams))
    node = cluster.nodes[f"{who}-{1 + turn % 2}"]
    streams, at, wall = load.midway(), time.monotonic(), time.time()
    epochs = [s.epoch for s in streams]
    if fault == "kill":
        node.end()
    elif fault in ("pause", "freeze"):
        node.signal(signal.SIGSTOP)
    if fault == "pause":
        time.sleep(PAUSE_S)
        node.signal(signal.SIGCONT)
    time.sleep(WATCH_S)
    deadline = at + PATIENCE_S
    while time.monotonic() < deadline and any(s in load.streams and s.last < at + 0.1 for s in streams):
        time.sleep(0.05)  # one still stalls
    longest = max([b - a for s in streams for a, b in s.gaps if b >= at] + [0.0])
    moved = sum(s.epoch > e for s, e in zip(streams, epochs))
    if fault == "kill":
        node.start()
    elif fault == "freeze":
        node.signal(signal.SIGCONT)
    cluster.until_ready()
    return Round(longest, given_up(cluster, node.name, wall), moved)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--settle", type=float, default=3.0)
    parser.add_argument("--keep", action="store_true", help="leave the logs")
    parser.add_argument("--verbose", action="store_true", help="print every round's stall")
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="failover-"))
    if "TRCTL" not in os.environ:
        os.environ["TRCTL"] = str(work / "trctl")
        subprocess.run(["go", "build", "-o", os.environ["TRCTL"], "./cmd/trctl"], cwd=ROOT, check=True)
    cluster = None
    try:
        cluster = Cluster(work)
        load = Load(cluster, options.streams)
        for which in range(2 * len(QUESTIONS)):  # undisturbed
            load.want[which] = load.answer(0, which)
        for thread in load.threads:
            thread.start()
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, {options.streams} streams, {options.rounds} rounds each")
        print(f"{'fault':24}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}{'moved':>7}{'given up':>10}{'p50 ms':>8}{'max ms':>8}")
        for name in options.only.split(","):
            who, fault = name.split("-")
            rounds = [one(cluster, load, who, fault, turn, options.settle) for turn in range(options.rounds)]
            stalls = sorted(1000 * r.stall for r in rounds)
            after = sorted(1000 * a for r in rounds for a in r.given_up)
            if options.verbose:
                print(" ".join(f"{s:.0f}" for s in stalls), "| given up:", " ".join(f"{a:.0f}" for a in after))
            p99 = stalls[min(len(stalls) - 1, int(0.99 * len(stalls)))]
            print(f"{name:24}{stalls[len(stalls) // 2]:8.0f}{p99:8.0f}{stalls[-1]:8.0f}{sum(r.moved for r in rounds):7}{len(after):10}", end="")
            print(f"{after[len(after) // 2]:8.0f}{after[-1]:8.0f}" if after else "", flush=True)
        load.stopping = True
        for thread in load.threads:
            thread.join(PATIENCE_S)
        print(f"{load.answers} answers, {len(load.wrong)} wrong, load average {os.getloadavg()[0]:.1f}")
        for line in load.wrong[:10]:
            print(line, file=sys.stderr)
        sys.exit(1 if load.wrong else 0)
    finally:
        if cluster is not None:
            cluster.end()
        if options.keep:
            print(f"left: {work}")
        else:
            subprocess.run(["rm", "-rf", str(work)], check=False)


main()
