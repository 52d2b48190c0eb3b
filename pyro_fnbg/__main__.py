"""``python -m pyro_fnbg``: the same as the command ``pyro-fnbg``."""

import sys

from pyro_fnbg.command_line.main import main

if __name__ == "__main__":
    sys.exit(main())
