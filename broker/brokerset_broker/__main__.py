"""`python -m brokerset_broker`."""

from __future__ import annotations

import sys

from brokerset_broker.app import main

if __name__ == "__main__":
    sys.exit(main())
