"""`python -m diptych_operator`."""

import sys

from diptych_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
