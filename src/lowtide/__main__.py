"""``python -m lowtide`` is the command line; ``torchrun -m lowtide train`` starts here."""

import sys

from lowtide.cli import main

if __name__ == "__main__":
    sys.exit(main())
