# SPDX-License-Identifier: Apache-2.0
"""What benchmarks have measured, kept in docs/performance.jsonl, and the tables in docs/performance.md, one of each machine, that
are made of it."""
import datetime
import json
import mmap
import os
import platform
import shlex
import time

import lib

SAVED = lib.TOP / "docs/performance.jsonl"
PAGE = lib.TOP / "docs/performance.md"
BEGIN, END = "<!-- made by bench/run --table from performance.jsonl -->", "<!-- end of the table -->"
HEAD = ["bench", "what", "ours", "baseline", "", "ratio", "goal", "met", "on", "load"]


def load():
    return [json.loads(line) for line in SAVED.read_text().splitlines()] if SAVED.exists() else []


def machine():
    """The kind of this machine, as /proc/cpuinfo names it: figures of different kinds do not belong in one table."""
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores{', slow page faults' if page_fault_micros() > 8 else ''}"


def page_fault_micros(pages=16384):
    """What a page costs that a process touches for the first time, but its machine does not: half a microsecond, or, where the
    machine is a guest without page tables in hardware, 17, and then everything else is another machine's too."""
    for _ in range(2):
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            began = time.monotonic()
            for at in range(0, len(memory), mmap.PAGESIZE):
                memory[at] = 1
            took = time.monotonic() - began
    return took / pages * 1e6


def save(command, lines, names):
    """Replaces what the same command had measured before on such a machine. `names` gives the order of the benchmarks."""
    command, here = shlex.join(command), machine()
    stamp = {"command": command, "date": datetime.date.today().isoformat(), "load": round(os.getloadavg()[1], 1), "machine": here}
    kept = [e for e in load() if (e["command"], e["machine"]) != (command, here)] + [{**line, **stamp} for line in lines]
    kept.sort(key=lambda entry: (entry["machine"], names.index(entry["command"].split()[0]), entry["command"]))
    SAVED.write_text("".join(json.dumps(entry) + "\n" for entry in kept))


def figure(value, unit=""):
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    text = f"{value:,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}".strip()


def row(entry):
    met = {True: "yes", False: "no", None: ""}[entry["met"]]
    return [f"`{entry['command']}`", entry["name"], figure(entry["value"], entry["unit"]), entry["baseline"] or "",
            figure(entry["baseline_value"], entry["unit"]), figure(entry["ratio"]), entry["goal"] or "", met, entry["date"],
            figure(entry["load"])]


def table(entries):
    rows = [HEAD, ["---"] * len(HEAD)] + [row(entry) for entry in entries]
    return "".join("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |\n" for cells in rows)


def tables(entries):
    """One of each machine, the one that was measured last first."""
    of = {}
    for entry in entries:
        of.setdefault(entry["machine"], []).append(entry)
    newest = sorted(of, key=lambda name: max(e["date"] for e in of[name]), reverse=True)
    return "\n".join(f"### {name}\n\n{table(of[name])}" for name in newest)


def write_page():
    """Rewrites what is between the markers; everything else is prose, written by hand."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(load())}{END}{rest.split(END)[1]}")
