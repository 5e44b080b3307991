"""Makes numpy available: importing this file starts the test again with the distribution's Python if the current Python
has no numpy. Tests import it first, before they make files."""
import os
import sys

try:
    import numpy
except ImportError:  # an interpreter that was built by hand does not see the distribution's packages
    if sys.executable == "/usr/bin/python3":
        sys.exit("numpy is missing; ci/install-deps installs it")
    os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
