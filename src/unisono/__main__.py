"""`python -m unisono` is the command `unisono`."""

import sys


def main() -> None:
    """Ctrl-C ends it without a word also while it is still being read."""
    try:
        from unisono.cli.main import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)  # `unisono.cli.main.INTERRUPTED`
    run_command()


if __name__ == "__main__":
    main()
