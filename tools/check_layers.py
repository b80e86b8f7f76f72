#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rooms of the house: who includes whom below src/, and how many files a folder has. Prints each offence; exit 1 if
there is one. docs/decisions/0035-rooms.md has the reasons."""
import pathlib
import re
import sys

MOST_FILES = 25  # of code, in one folder

# Module -> the modules whose headers it may include (besides its own).
ALLOWED = {
    "base": set(),
    "tree": {"base"},
    "store": {"base", "tree"},
    "rpc": {"base"},
    "s3": {"base"},
    "oidc": {"base"},
    "vfs": {"base", "tree", "store"},
    "sandbox": {"base"},
    "gpu": {"base"},
    "sched": {"base"},
    "sim": {"base", "sched"},
    "jobs": {"base"},
    "people": {"base"},
    "ports": {"base"},
    "history": {"base", "jobs"},
    "http": {"base"},
    "telemetry": {"base", "http"},
    "identity": {"base", "people", "rpc"},
    "home": {"base", "tree", "store", "people", "rpc", "identity", "jobs", "ports", "http", "telemetry"},
    "node": {"base", "tree", "store", "vfs", "sandbox", "gpu", "people", "rpc", "identity", "s3", "ports", "http", "telemetry"},
    # A node towards homes, a home towards nodes: made of one half of each.
    "snapshots": {"base", "tree", "store", "vfs", "rpc", "s3", "home", "node"},
    "control": {"base", "sched", "jobs", "history", "people", "rpc", "s3", "oidc", "http", "telemetry"},
    "pools": {"base", "rpc"},
    "cli": {"base", "jobs", "history", "people", "ports"},
    "simulator": {"base", "sim", "cli", "history"},
    "daemon": {"base", "telemetry", "people", "rpc", "identity", "oidc", "home", "node", "snapshots", "control"},
}

# Folders of a module, lowest first: each includes only itself and those before it. "." is the module's own folder.
# "testing", where there is one, is above all of them, and only tests include it.
ROOMS = {
    "base": ["thread", ".", "hash", "io", "secrets", "time"],
    "tree": [".", "scan"],
    "store": ["format", "."],
    "gpu": [".", "inject"],
    "sandbox": ["filter", "mounts", "."],
    "sched": ["model", "share", "place", ".", "engine"],
    "sim": ["replay", "policies", "pods", "report"],
    "snapshots": ["away", "."],
    "vfs": [".", "fuse", "trace", "content", "push", "frozen", "live/data", "live/tree",
            "live/kernel", "live/content", "live/root", "live"],
    "home": ["root/watch", "root/secrets", "root", "scope", "apply", "pack", "ahead", "frozen", "serve", "serve/requests", "links", "streams", "kept", "runs/command",
             "runs", "runs/pod", "runs/gang", "clients", "."],
    "node": [".", "s3", "source", "peers", "views", "carry", "fs", "gang", "gpus", "ports", "limits", "task", "metrics", "traces", "agent"],
    "control": ["store", "backup", "money", "tier", "places", "gpus", "needs", "journal", "access", "notify", "state", "state/arrays", "state/gpus", "state/people", "state/money", "state/notify", "traces", "ops", "dashboard", "whatif", "api", "duties", "."],
    "cli": ["base", "array", "isolation", "notify", "request", "gpus", "usage", "host", "run", "ctl", "people", "."],
}
TESTING = "testing"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z0-9_]+)/((?:[a-z0-9_]+/)*)[a-z0-9_]+\.h"')
BOOST = re.compile(r'^\s*#\s*include\s+<boost/')
GRPC = re.compile(r'^\s*#\s*include\s+<grpc')


def is_test(path):
    return bool(re.search(r"_(test|bench)\.cc$", path.name)) or TESTING in path.parts


def offences(root):
    for folder in sorted({path.parent for path in root.rglob("*") if path.suffix in (".h", ".cc")}):
        files = [path for path in folder.iterdir() if path.suffix in (".h", ".cc")]
        if len(files) > MOST_FILES:
            yield f"{folder}: {len(files)} files of code: at most {MOST_FILES} in a folder"
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        module, *rooms = path.relative_to(root).parts[:-1]
        room = "/".join(rooms) or "."
        if module not in ALLOWED:
            yield f"{path}: module {module} is not in tools/check_layers.py"
            continue
        order = ROOMS.get(module, ["."]) + [TESTING]
        if room not in order:
            yield f"{path}: folder {room} of {module} is not in tools/check_layers.py"
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if GRPC.match(line) and (module != "rpc" or path.suffix != ".cc"):
                yield f"{path}:{number}: only src/rpc/*.cc includes gRPC"
            if BOOST.match(line) and path.relative_to(root).as_posix() != "http/server.cc":
                yield f"{path}:{number}: only src/http/server.cc includes Boost"
            match = INCLUDE.match(line)
            if not match or match[1] not in ALLOWED:
                continue
            other, other_room = match[1], match[2].rstrip("/") or "."
            if other != module and other not in ALLOWED[module]:
                yield f"{path}:{number}: {module} must not include {other}"
            elif other_room == TESTING and not is_test(path):
                yield f"{path}:{number}: only tests include {other}/{TESTING}"
            elif other == module and not is_test(path):
                if other_room not in order:
                    yield f"{path}:{number}: folder {other_room} of {module} is not in tools/check_layers.py"
                elif order.index(other_room) > order.index(room):
                    yield f"{path}:{number}: {module}/{room} must not include {module}/{other_room}, which is above it"


def main():
    source = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "src"
    found = list(offences(source))
    print("\n".join(found) if found else "layers: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
