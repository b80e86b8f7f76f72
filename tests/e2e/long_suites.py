# SPDX-License-Identifier: Apache-2.0
"""Random work of test_suites.py for longer, stress-ng's file system class, and an environment that is a whole distribution.
./test suites runs this; nothing else does.

VRUN_SUITES_SEEDS: seeds of the random work, with blanks between (default 11 12 13); VRUN_STRESS_SECONDS: of each stressor (2)."""
import os
import re
import subprocess

import pytest

import miniroot
import suites
from test_env import envs, shell  # noqa: F401 (a fixture)
from test_suites import SUITES, VIEWS, place, same, sides, tools  # noqa: F401 (fixtures)

pytestmark = pytest.mark.seconds(1800)
SEEDS = list(map(int, os.environ.get("VRUN_SUITES_SEEDS", "11 12 13").split()))
STRESS_SECONDS = int(os.environ.get("VRUN_STRESS_SECONDS", "2"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("view", VIEWS)
def test_random_work_on_a_file(sides, view, seed):  # noqa: F811
    same(sides, "fs_suites", "fsx", ".", seed, 20_000, native=[SUITES, "fsx", ".", seed, 20_000], timeout=900)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("view", VIEWS)
def test_random_work_on_a_tree(sides, view, seed):  # noqa: F811
    same(sides, "fs_suites", "churn", ".", seed, 3000, 4, native=[SUITES, "churn", ".", seed, 3000, 4], timeout=600)


def stressors():
    said = subprocess.run(["stress-ng", "--class", "filesystem?"], capture_output=True, text=True)
    return re.search(r"stressors: (.*)", said.stdout + said.stderr)[1].split()


def stress(side, name):
    """Its exit status (0 passed, 2 failed, 3 or 4 not possible here) and what it says."""
    (side.place / name).mkdir()
    command = ["stress-ng", f"--{name}", "1", "-t", str(STRESS_SECONDS), "--verify", "--temp-path", "."]
    argv = side.command(*command) if not side.view else side.cluster.command("vrun", f"--view={side.view}", "-q", "-D", f"{side.inside}/{name}", "--", *command)
    r = subprocess.run(argv, cwd=side.place / name if not side.view else "/", env={**side.cluster.environment, **suites.ENVIRONMENT}, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 + 10 * STRESS_SECONDS)
    return r.returncode, r.stdout


@pytest.mark.parametrize("view", VIEWS)
def test_stress_ng(sides, view):  # noqa: F811
    """Each stressor that passes natively does so in a job. Those that fail natively too are named."""
    miniroot.place_packages(sides[1].cluster.root, "stress-ng")
    failed, both = [], []
    for name in stressors():
        try:
            job = stress(sides[1], name)
        except subprocess.TimeoutExpired:
            job = 124, "not over in time"
        if job[0] in (0, 3, 4):
            continue
        native = stress(sides[0], name)
        (both if native[0] not in (0, 3, 4) else failed).append(f"{name}: {job[0]}: {job[1][-600:]}")
    print("natively, too:", both)
    assert not failed, "\n".join(failed)


def test_an_environment_made_by_debootstrap(envs):  # noqa: F811
    envs.run("vctl", "env", "create", "fresh", "--from-debootstrap", "bookworm", timeout=800, check=True)
    assert "12" in shell(envs, "fresh", "cat /etc/debian_version", check=True).stdout
