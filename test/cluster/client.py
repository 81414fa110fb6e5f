"""Streams answers through several gateways, and kills processes while they stream.

    client.py record FILE      writes the texts of an undisturbed run
    client.py disturb FILE     streams until told to stop, and compares every text

disturb reads commands on standard input, one a line, and answers each with a line of
JSON on standard output:

    kill NAME PID   SIGKILL, once enough streams are being written
    term NAME PID   SIGTERM then
    finish N        waits until N more answers have ended
    stop            lets the streams end; the last line sums up

A run is void unless streams were being written at every kill, and went on after it.
GATEWAYS are base URLs separated by commas, KEY is the API key, CANARY a text that goes
into requests and must not be found anywhere else. It ends with 1 if anything is wrong.
"""

import datetime
import itertools
import json
import os
import signal
import sys
import threading
import time

import openai
from openai import OpenAI

GATEWAYS = os.environ["GATEWAYS"].split(",")
CANARY = os.environ["CANARY"]
STREAMS = 6  # at a time
MIDWAY = 3  # streams that must be midway for a kill
STARTED = 4  # tokens after which a stream is midway
PATIENCE_S = 30.0  # for every wait

QUESTIONS = [
    "What is 48 + 72 * 29?",
    "What is 381 * 27 + 55 * 13?",
    f"{CANARY} What is 902 - 17 * 31?",
    "What is 6 * 7 * 8 - 9?",
    f"Count to twenty. {CANARY}",
    "What is (14 + 88) * 3?",
]


def requests() -> list[dict]:
    """Greedy and seeded requests; most go on after the end of their answer, to be long."""
    out = []
    for i, question in enumerate(QUESTIONS):
        base = dict(
            model="tiny",
            messages=[{"role": "user", "content": question}],
            stop=[CANARY + "-stop"],
            user=CANARY + "-user",
            stream=True,
        )
        out.append(base | dict(temperature=0, max_tokens=600))
        long = dict(extra_body={"ignore_eos": True}, max_tokens=300)
        out.append(base | long | dict(temperature=0))
        out.append(base | long | dict(temperature=0.9, seed=100 + i))
    return out


class Failure(Exception):
    """An answer that did not come as it should."""


class Kill:
    """A signal, and the streams that were midway then with their numbers of tokens."""

    def __init__(self, name: str, number: int, midway: dict[int, int]) -> None:
        self.name, self.number, self.midway = name, number, midway
        self.went_on = 0


class Load:
    """STREAMS threads that ask, one answer after another, at one gateway after another."""

    def __init__(self, want: dict[str, str] | None) -> None:
        self.want = want
        self.texts: dict[str, str] = {}
        self.clients = [
            OpenAI(base_url=url + "/v1", api_key=os.environ["KEY"], max_retries=0, timeout=60, default_headers={"X-Canary": CANARY})
            for url in GATEWAYS
        ]
        self.changed = threading.Condition()
        self.tokens: dict[int, int] = {}  # of streams being written
        self.kills: list[Kill] = []
        self.ended = self.elsewhere = self.moved = 0
        self.failures: list[str] = []
        self.longest_gap = 0.0
        self.stopping = False

    def answer(self, number: int, request: dict) -> str:
        """One answer. A gateway that refuses or is not there is no failure while another is."""
        refused = None
        for attempt in range(4 * len(GATEWAYS)):
            if attempt >= len(GATEWAYS):
                time.sleep(0.1)
            try:
                stream = self.clients[(number + attempt) % len(GATEWAYS)].chat.completions.create(**request)
            except (openai.APIConnectionError, openai.InternalServerError) as error:
                refused = error
                with self.changed:
                    self.elsewhere += 1
                continue
            try:
                return self.read(number, stream)
            except Exception as error:
                where = f"{GATEWAYS[(number + attempt) % len(GATEWAYS)]} as {stream.response.headers.get('x-request-id')}"
                raise Failure(f"{where}: {type(error).__name__}: {error}") from error
        raise Failure(f"no gateway takes it: {refused}")

    def read(self, number: int, stream) -> str:
        text, finish, last, epoch = "", None, None, None
        for chunk in stream:
            now = time.monotonic()
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            extra = (chunk.model_extra or {}).get("trctl") or {}
            epoch = extra.get("epoch", epoch)
            with self.changed:
                self.tokens[number] = self.tokens.get(number, 0) + 1
                if last is not None:
                    self.longest_gap = max(self.longest_gap, now - last)
                self.changed.notify_all()
            last = now
        if finish is None:
            raise Failure(f"the stream ended after {len(text)} bytes without a finish_reason")
        if epoch is not None and epoch > 1:
            with self.changed:
                self.moved += 1
        return text

    def run(self, turn: "itertools.count[int]") -> None:
        todo = requests()
        while True:
            with self.changed:
                number = next(turn)
                if self.stopping or self.want is None and number >= len(todo):
                    return
            which = str(number % len(todo))
            wrong = None
            try:
                text = self.answer(number, todo[int(which)])
                if self.want is not None and text != self.want[which]:
                    wrong = f"another text: {text!r}, undisturbed it was {self.want[which]!r}"
            except Exception as error:  # whatever it is, the request has failed
                text, wrong = "", f"{type(error).__name__}: {error}"
            with self.changed:
                count = self.tokens.pop(number, 0)
                for kill in self.kills:
                    if count > kill.midway.get(number, count):
                        kill.went_on += 1
                self.texts[which] = text
                self.ended += 1
                if wrong:
                    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
                    self.failures.append(f"{at} request {number} ({which}): {wrong}")
                self.changed.notify_all()

    def wait(self, ok, what: str) -> None:
        """Waits with self.changed held."""
        if not self.changed.wait_for(ok, PATIENCE_S):
            raise Failure(f"waited {PATIENCE_S} s in vain for {what}")

    def kill(self, name: str, pid: int, number: int) -> dict:
        with self.changed:
            self.wait(lambda: len(self.midway()) >= MIDWAY, f"{MIDWAY} streams to kill {name} in")
            os.kill(pid, number)
            self.kills.append(Kill(name, number, self.midway()))
            return {"killed": name, "midway": len(self.kills[-1].midway)}

    def midway(self) -> dict[int, int]:
        return {number: count for number, count in self.tokens.items() if count >= STARTED}

    def finish(self, more: int) -> dict:
        with self.changed:
            goal = self.ended + more
            self.wait(lambda: self.ended >= goal, f"{more} more answers")
            return {"ended": self.ended, "failed": len(self.failures)}

    def stop(self) -> None:
        with self.changed:
            self.stopping = True

    def void(self) -> list[str]:
        out = [f"void: {kill.name} was ended, and no stream went on after that" for kill in self.kills if kill.went_on == 0]
        if any(kill.number == signal.SIGKILL for kill in self.kills) and not self.moved:
            out.append("void: no answer moved to another entry")
        return out

    def summary(self) -> dict:
        return {
            "answers": self.ended,
            "failed": len(self.failures),
            "moved": self.moved,
            "asked another gateway": self.elsewhere,
            "longest gap in a stream, s": round(self.longest_gap, 3),
            "kills": {kill.name: {"midway": len(kill.midway), "went on": kill.went_on} for kill in self.kills},
        }


def obey(load: Load) -> None:
    for line in sys.stdin:
        command, *words = line.split()
        if command in ("kill", "term"):
            said = load.kill(words[0], int(words[1]), signal.SIGKILL if command == "kill" else signal.SIGTERM)
        elif command == "finish":
            said = load.finish(int(words[0]))
        elif command == "stop":
            return
        else:
            raise Failure(f"unknown command {line!r}")
        print(json.dumps(said), flush=True)


def main() -> None:
    mode, file = sys.argv[1:]
    want = None
    if mode == "disturb":
        with open(file, encoding="utf-8") as f:
            want = json.load(f)
    load = Load(want)
    turn = itertools.count()
    threads = [threading.Thread(target=load.run, args=(turn,)) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    wrong = []
    try:
        if want is not None:
            obey(load)
    except Failure as failure:
        wrong.append(str(failure))
    finally:
        if want is not None:
            load.stop()
        for thread in threads:
            thread.join()
    wrong += load.failures + load.void()
    print(json.dumps(load.summary()), flush=True)
    if want is None:
        with open(file, "w", encoding="utf-8") as f:
            json.dump(load.texts, f)
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
