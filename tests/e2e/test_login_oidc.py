# SPDX-License-Identifier: Apache-2.0
"""People log in by an identity provider: `vctl login ADDRESS`, with a real provider and its real pages."""
import json
import os
import re
import signal
import time

import oidc
import pytest
from cluster import wait_until
from test_people import Person

pytestmark = pytest.mark.skipif(oidc.MISSING is not None, reason=str(oidc.MISSING))

PEOPLE = {"anna": {"groups": ["ml", "staff"]}, "bob": {"groups": ["staff"]}, "eve": {"groups": ["guests"]},
          "mallory": {"preferred_username": "anna", "groups": ["ml", "staff"]}, "strange": {"preferred_username": "../x", "groups": ["staff"]}}


class Login:
    """`vctl login` that waits for its person."""
    def __init__(self, person, address, *words):
        self.process = person.cluster.popen("vctl", "login", address, "--name", "laptop", *words, env=person.environment,
                                            stdout=-1, stderr=-1, text=True)
        self.url = self.code = None
        lines = [self.process.stderr.readline() for _ in range(2)]
        found = re.fullmatch(r"To log in, open (\S+)\nand check that it shows the code (\S+)\n", "".join(lines))
        assert found, "".join(lines) + self.process.stderr.read()
        self.url, self.code = found[1], found[2]

    def end(self, timeout=30):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def refused(self):
        status, _, err = self.end()
        assert status == 1 and len(err.splitlines()) == 1, (status, err)
        return err


@pytest.fixture
def providers():
    made = []

    def provider(*options):
        made.append(oidc.Provider(PEOPLE, *options))
        return made[-1]
    yield provider
    for p in made:
        p.close()


@pytest.fixture
def team(own, providers):
    made = []

    def start(text="", provider=None, environment=()):
        provider = provider or providers()
        os.environ.update(environment)
        c = own(nodes=1)
        for name in dict(environment):
            del os.environ[name]
        configure(c, provider, text)
        people = {}

        def person(name):
            if name not in people:
                people[name] = Person(c, c.directory / name)
                made.append(people[name])
            return people[name]
        return c, provider, person
    yield start
    for p in made:
        p.close()


def configure(c, provider, text="", client="vrun", issuer=None):
    (c.directory / "home/scheduler.toml").write_text(
        f'{text}\n[oidc]\nissuer = "{issuer or provider.issuer}"\nclient_id = "{client}"\nscopes = "openid profile groups"\n'
        'allow_groups = ["staff"]\n')
    before = c.logs().count("read from")
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    wait_until("the configuration is read", lambda: c.logs().count("read from") > before)


def address(c):
    return c.vctl("user", "address", "--controller", f"127.0.0.1:{c.port}").stdout.strip()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_person_logs_in_by_the_provider(team, providers, algorithm):
    text = 'admins = ["@ml"]\n[team.vision]\nusers = ["@ml"]\n' if algorithm == "RS256" else ""
    c, provider, person = team(text, providers("--algorithm", algorithm), {"VRUN_CERTIFICATE_SECONDS": "8"})
    anna = person("anna")
    began = time.monotonic()
    login = Login(anna, address(c))
    oidc.Browser().approve(login.url, "anna", login.code)
    status, out, err = login.end()
    assert status == 0 and "you are anna@laptop" in out, (out, err)
    assert time.monotonic() - began < 60
    assert anna.run("vrun", "-D", "/root", "--", "echo", "hello", check=True).stdout == "hello\n"
    me = json.loads(anna.run("vctl", "whoami", "-o", "json", check=True).stdout)
    assert me["name"] == "anna@laptop"
    if algorithm == "RS256":   # what her groups give her
        assert (me["role"], me["teams"]) == ("admin", ["vision"])
    # The certificate renews itself.
    wait_until("another certificate", lambda: json.loads(anna.run("vctl", "whoami", "-o", "json").stdout or "{}").get(
        "certificate_ends", "") > me["certificate_ends"], 20)
    assert anna.run("vrun", "-D", "/root", "--", "echo", "again", check=True).stdout == "again\n"
    told = [(a["who"], a["what"], a["result"]) for a in c.json("admin", "audit")["audit"]]
    assert ("home anna@laptop", "login", "ok") in told
    c.vctl("user", "revoke", "anna")
    assert "shut out" in anna.run("vbatch", "true").stderr


def test_who_does_not_get_in(team, providers):
    c, provider, person = team()
    bob, eve = person("bob"), person("eve")

    def attempt(who, login_as):
        login = Login(who, address(c))
        oidc.Browser().approve(login.url, login_as, login.code)
        return login

    login = Login(bob, address(c))
    oidc.Browser().refuse(login.url, login.code)
    assert "the login was refused at the identity provider" in login.refused()
    assert "in no group whose members may use this cluster" in attempt(eve, "eve").refused()
    assert "cannot be a user's name" in attempt(eve, "strange").refused()
    # Another account that has taken her name.
    assert attempt(person("anna"), "anna").end()[0] == 0
    assert "belongs to another account" in attempt(eve, "mallory").refused()
    # A token for another client, and one of another issuer.
    login = Login(bob, address(c))
    configure(c, provider, client="other")
    oidc.Browser().approve(login.url, "bob", login.code)
    assert "the ID token is for another client than other" in login.refused()
    configure(c, provider)
    login = Login(bob, address(c))
    second = providers()
    configure(c, second)
    oidc.Browser().approve(login.url, "bob", login.code)
    said = login.refused()
    assert "key that its issuer does not show" in said or "is not signed by its issuer" in said
    # Shut out is shut out.
    configure(c, provider)
    c.vctl("user", "revoke", "bob")
    assert "shut out" in attempt(bob, "bob").refused()
    assert c.json("user", "list")["users"] == [u for u in c.json("user", "list")["users"] if u["user"] == "anna"]
    for p in (bob, eve):
        assert "controller" not in (p.directory / "config.toml").read_text()


def test_providers_and_addresses_that_are_wrong(team, providers):
    c, provider, person = team()
    bob = person("bob")

    def said(*words):
        done = bob.run("vctl", "login", *words)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr
    good = address(c)
    # Who does not know the authority is told it, and asks nobody for a code before.
    assert f"run: vctl login {good}" in said(good.split("/")[0])
    assert "not the cluster of this address" in said(good.split("/")[0] + "/" + "0" * 64)
    assert "nobody answers" in said("127.0.0.1:1/" + "0" * 64)
    # A provider that calls itself otherwise, that is away, and none at all.
    configure(c, provider, issuer=providers("--issuer", "https://id.example.org").issuer)
    assert "calls itself https://id.example.org" in said(good)
    configure(c, provider, issuer="http://127.0.0.1:1")
    assert "does not answer" in said(good)
    (c.directory / "home/scheduler.toml").write_text("")
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    wait_until("nobody logs in by a provider", lambda: "nobody logs in to this cluster" in said(good))
    # A code that nobody approves.
    short = providers("--code-seconds", "3")
    configure(c, short)
    login = Login(bob, good)
    assert "has ended before it was approved" in login.refused()
