"""`python -m app` is the program `earlybyte`."""

import sys

from app.cli import main

sys.exit(main())
