# SPDX-License-Identifier: Apache-2.0
"""What benchmarks have measured, kept in docs/performance.jsonl, and the table in docs/performance.md that is made of it."""
import datetime
import json
import os
import shlex

import lib

SAVED = lib.TOP / "docs/performance.jsonl"
PAGE = lib.TOP / "docs/performance.md"
BEGIN, END = "<!-- made by bench/run --table from performance.jsonl -->", "<!-- end of the table -->"
HEAD = ["bench", "what", "ours", "baseline", "", "ratio", "goal", "met", "on", "load"]


def load():
    return [json.loads(line) for line in SAVED.read_text().splitlines()] if SAVED.exists() else []


def save(command, lines, names):
    """Replaces what the same command had measured before. `names` gives the order of the benchmarks."""
    command = shlex.join(command)
    stamp = {"command": command, "date": datetime.date.today().isoformat(), "load": round(os.getloadavg()[1], 1)}
    kept = [entry for entry in load() if entry["command"] != command] + [{**line, **stamp} for line in lines]
    kept.sort(key=lambda entry: (names.index(entry["command"].split()[0]), entry["command"]))
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


def write_page():
    """Rewrites what is between the markers; everything else is prose, written by hand."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(load())}{END}{rest.split(END)[1]}")
