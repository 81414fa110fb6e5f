"""The commands of README's cluster section, for run.sh.

Prints a line for each block of commands and each machine that its comment names:

    MACHINE <tab> COMMAND [<newline as \\x1f> COMMAND …]

A comment such as "# b and c: two workers each" names machines before its first
comma or colon.
"""

import re
import sys

MACHINES = ("a", "b", "c")


def blocks(readme: str) -> list[tuple[list[str], list[str]]]:
    section = readme.split("\n## A cluster\n", 1)[1].split("\n## ", 1)[0]
    script = section.split("```sh\n", 1)[1].split("```", 1)[0].replace("\\\n", " ")
    out: list[tuple[list[str], list[str]]] = []
    for line in script.splitlines():
        if line.startswith("#"):
            named = re.split("[:,]", line[1:], maxsplit=1)[0].split()
            out.append(([word for word in named if word in MACHINES], []))
        elif line.strip():
            out[-1][1].append(line.strip())
    return [(machines, commands) for machines, commands in out if commands]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        found = blocks(file.read())
    for machines, commands in found:
        if not machines:
            sys.exit(f"no machine is named for: {commands}")
        for machine in machines:
            print(machine + "\t" + "\x1f".join(commands))


main()
