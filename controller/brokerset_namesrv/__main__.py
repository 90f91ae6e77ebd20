"""`python -m brokerset_namesrv`: the name server as a process of its own."""

from __future__ import annotations

import sys

from brokerset_namesrv.app import main

if __name__ == "__main__":
    sys.exit(main())
