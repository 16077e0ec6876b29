"""`python -m volfs`: the command line, also how a mount starts its own daemon."""

from __future__ import annotations

from volfs.cli import main

if __name__ == "__main__":
    main(prog_name="volfs")
