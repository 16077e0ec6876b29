"""Puts `fake_daemon` in the place of `volfs.daemon` in every interpreter that finds this on its path.

The command line is tested against a daemon that fails on request, in the processes that it starts itself.
"""

import importlib
import sys

sys.modules["volfs.daemon"] = importlib.import_module("fake_daemon")
