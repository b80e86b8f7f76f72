# SPDX-License-Identifier: Apache-2.0
"""Secrets that a command is given, in the sandbox alone."""
import os


def test_a_secret_is_a_file_of_the_commands_user_alone(box):
    def look(uid):
        return box.python("""if True:
            import os, stat, sys
            st = os.stat("/run/secrets/token")
            print(oct(stat.S_IMODE(st.st_mode)), st.st_uid)
            try:
                print(open("/run/secrets/token").read())
            except PermissionError:
                print("refused")""", options=["--secret", "/run/secrets/token:hidden", "--uid", str(uid)])
    assert look(1000) == "0o400 1000\nhidden\n"
    assert look(0) == "0o400 0\nhidden\n"
    assert not os.path.exists("/run/secrets/token")
    # Another user of the same root.
    other = """if True:
        import os
        os.setgid(1001)
        os.setuid(1001)
        try:
            print(open("/run/secrets/token").read())
        except PermissionError:
            print("refused")"""
    assert box.python(other, options=["--secret", "/run/secrets/token:hidden"]) == "refused\n"
    # In no other job, and in nobody's arguments.
    assert box.python("import os; print(os.path.exists('/run/secrets'))") == "False\n"
