# SPDX-License-Identifier: Apache-2.0
"""A job in a live view and somebody at home do random things in one directory; when both are quiet, both see the same."""
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import time

import pytest

import random_files
from cluster import FULL, Cluster

pytestmark = pytest.mark.seconds(180)
# For longer searches: the first seed and how many.
FIRST, COUNT = int(os.environ.get("VRUN_RANDOM_SEED", 1)), int(os.environ.get("VRUN_RANDOM_COUNT", 3 if FULL else 1))
STEPS = 60


@pytest.fixture(scope="module")
def cluster(template_root):
    directory = tempfile.mkdtemp(prefix="vrun-random-", dir="/var/tmp")
    root = pathlib.Path(directory) / "root"
    subprocess.run(["cp", "-a", template_root, root], check=True)
    shutil.copy(random_files.__file__, root / "random_files.py")
    c = Cluster(root, nodes=1)
    yield c
    c.close()
    shutil.rmtree(directory, ignore_errors=True)


class Job:
    def __init__(self, cluster, top):
        self.process = cluster.popen("vrun", "--view=live", "-q", "-D", "/root", "--", "/usr/bin/python3.11", "/random_files.py", top,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.process.stderr.read()


def same_soon(job, home, said):
    end = time.monotonic() + 40
    while (there := job.ask("describe")) != (here := random_files.describe(home)):
        assert time.monotonic() < end, {"said": said, **{k: (there.get(k), here.get(k)) for k in {*there, *here}
                                                         if there.get(k) != here.get(k)}}
        time.sleep(0.1)


@pytest.mark.parametrize("how", ["the job alone", "in turns"] + ["at once"] * ("VRUN_RANDOM_SEED" in os.environ))
def test_both_see_the_same_in_the_end(cluster, how):
    for seed in range(FIRST, FIRST + COUNT):
        top = f"/root/{how.replace(' ', '-')}-{seed}"
        home = str(cluster.root) + top
        os.mkdir(home)
        at_home = random_files.Actor(home, "home")
        rng = random.Random(seed)
        for _ in range(12):
            at_home.step(rng)
        at_home.close()
        job = Job(cluster, top)
        for part in range(4):
            said = []

            def home_acts():
                for _ in range(STEPS):
                    said.append(at_home.step(rng))
                    time.sleep(rng.random() * 0.01)
                at_home.close()

            beside = threading.Thread(target=home_acts)
            if how == "at once":
                beside.start()
            said += job.ask("run", seed * 4 + part, STEPS)
            job.ask("close")
            if how == "at once":
                beside.join()
            elif how == "in turns":
                same_soon(job, home, said)
                home_acts()
            same_soon(job, home, (seed, part, said))
        job.end()
