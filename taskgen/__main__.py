"""``python -m taskgen``."""

from taskgen.cli import main

if __name__ == "__main__":
    main()
