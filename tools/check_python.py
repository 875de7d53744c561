"""Says why this interpreter cannot make the environment; prints nothing if it can.

Runs under any Python, even an old one.
"""

import os
import sys
import sysconfig


def complaint():
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        return "is Python %d.%d" % sys.version_info[:2]  # noqa: UP031
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return "has no %s (Debian, Ubuntu: apt-get install python3-venv)" % error.name  # noqa: UP031
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")  # noqa: PTH118
    if not os.path.exists(header):  # noqa: PTH110
        return "has no %s (Debian, Ubuntu: apt-get install python3-dev)" % header  # noqa: UP031
    return None


if complaint():
    print(complaint())
    sys.exit(1)
