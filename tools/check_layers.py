#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that modules below src/ include only what lies below them. Prints each offence; exit 1 if there is one."""
import pathlib
import re
import sys

# Module -> the modules whose headers it may include (besides its own).
ALLOWED = {
    "base": set(),
    "tree": {"base"},
    "store": {"base", "tree"},
    "rpc": {"base"},
    "s3": {"base"},
    "vfs": {"base", "tree", "store"},
    "sandbox": {"base"},
    "gpu": {"base"},
    "sched": {"base"},
    "sim": {"base", "sched"},
    "jobs": {"base"},
    "home": {"base", "tree", "store", "rpc", "jobs"},
    "node": {"base", "tree", "store", "vfs", "sandbox", "gpu", "rpc", "s3"},
    # A node towards homes, a home towards nodes: made of one half of each.
    "snapshots": {"base", "tree", "store", "vfs", "rpc", "s3", "home", "node"},
    "control": {"base", "sched", "rpc", "s3"},
    "pools": {"base", "rpc"},
    "cli": {"base", "sim", "jobs"},
    "daemon": {"base", "rpc", "home", "node", "snapshots", "control"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z0-9_]+)/')
GRPC = re.compile(r'^\s*#\s*include\s+<grpc')


def offences(root):
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        module = path.relative_to(root).parts[0]
        if module not in ALLOWED:
            yield f"{path}: module {module} is not in tools/check_layers.py"
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if match and match[1] != module and match[1] in ALLOWED and match[1] not in ALLOWED[module]:
                yield f"{path}:{number}: {module} must not include {match[1]}"
            if GRPC.match(line) and (module != "rpc" or path.suffix != ".cc"):
                yield f"{path}:{number}: only src/rpc/*.cc includes gRPC"


def main():
    found = list(offences(pathlib.Path(__file__).resolve().parent.parent / "src"))
    print("\n".join(found) if found else "layers: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
