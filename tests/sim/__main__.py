"""`python -m sim [seeds]` with tests/ on the path; see `sim.full`."""

import sys

from sim.full import main

if __name__ == "__main__":
    sys.exit(main())
