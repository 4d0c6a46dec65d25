"""`python -m deeptaylor.cli`."""

import sys

from deeptaylor.cli import main

if __name__ == "__main__":
    sys.exit(main())
