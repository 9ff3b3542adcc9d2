"""`python serve.py ARGS` is `specrt serve ARGS`."""

import sys

from specrt.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
