#!/usr/bin/env python
"""Django's command line for the YOCO service."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed here. Run `make demo` (or `make test`) once: it makes .venv and installs it.")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
