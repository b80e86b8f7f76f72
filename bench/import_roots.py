# SPDX-License-Identifier: Apache-2.0
"""The roots in which benchmarks import something: made once, kept below --directory.

pypi: a Debian with PyPI's torch (its CUDA libraries too, 5.6 GB) and transformers in a virtual environment, as developers have it.
debian: Debian's own torch 1.13 (1.4 GB); debian-numpy: where disk is short."""
import dataclasses
import pathlib

import roots

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
# Loads torch and 2,000 small modules.
TRANSFORMERS = "from transformers import AutoTokenizer, LlamaForCausalLM, Trainer"


@dataclasses.dataclass
class Kind:
    name: str
    debian: tuple
    pypi: tuple = ()
    python: str = "/usr/bin/python3"
    statement: str = "import torch"
    gigabytes: int = 8            # that must be free to make it
    cold: tuple = ("<= 4 s", lambda ours, native: ours <= 4.0)      # the first run, over a link with less than 10 ms
    traced: tuple = ("<= 2.0 s", lambda ours, native: ours <= 2.0)
    wire_mb: float = 50           # None: there is no goal

    def version(self):
        return " ".join((*self.debian, *self.pypi))


def times_native(most):
    return f"ratio <= {most}", lambda ours, native: ours <= most * native


KINDS = {k.name: k for k in (
    Kind("pypi", ("python3", "python3-venv"), ("torch", "transformers"), "/opt/python/bin/python", gigabytes=16, cold=times_native(2),
         traced=times_native(1.15), wire_mb=None),
    Kind("debian", ("python3", "python3-numpy", "python3-torch")),
    Kind("debian-numpy", ("python3", "python3-numpy"), statement="import numpy", gigabytes=2))}


def add_options(parser):
    parser.add_argument("--root", choices=KINDS, default="pypi")
    parser.add_argument("--statement", metavar="PYTHON",
                        help=f"what is run; default: what the root is for; 'transformers' is short for {TRANSFORMERS!r}")
    parser.add_argument("--directory", default="/var/tmp", help="where roots are kept")


class ImportRoot:
    """The root that the options name, made if it is not there, and what is run in it."""

    def __init__(self, options):
        self.kind = KINDS[options.root]
        given = options.statement or self.kind.statement
        self.statement = TRANSFORMERS if given == "transformers" else given
        self.path = roots.kept(pathlib.Path(options.directory) / f"vrun-bench-root-{self.kind.name}", self.kind.version(), self._make,
                               self.kind.gigabytes)
        self.command = [self.kind.python, "-c", self.statement]
        self.more = {"root": self.kind.name, "statement": self.statement}

    def _make(self, directory):
        import lib
        lib.note(f"making a root with {self.kind.version()} (minutes, once)")
        roots.debootstrap(directory, self.kind.debian)
        if self.kind.pypi:
            roots.virtual_environment(directory, "/opt/python", self.kind.pypi)

    def chrooted(self, at=None):
        """argv of the command in this root, or in a copy `at` a place, that has its mounts."""
        return ["/usr/sbin/chroot", str(at or self.path), "/usr/bin/env", "-i", *(f"{k}={v}" for k, v in ENV.items()), *self.command]
