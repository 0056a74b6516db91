"""`python -m pipeline` is `dueline`."""

import sys

from pipeline.cli import main

sys.exit(main())
