"""``python -m lowtide`` is the command line; ``torchrun -m lowtide train`` starts here."""

import sys

try:
    from lowtide.cli import main
except KeyboardInterrupt:  # a terminal's Ctrl-C reaches every rank, also one that has hardly begun
    print("lowtide: stopped by Ctrl-C.", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
