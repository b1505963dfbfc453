"""The command `shardstream`, and `python -m shardstream`."""

import sys

from shardstream.installation import HiddenPackageError, MissingExtraError, import_own

# As for every error that the caller can fix.
EXIT_USAGE = 2


def main() -> None:
    """Run the command line; a faulty installation ends it with one line on standard error."""
    try:
        import_own("shardstream.commands.app").main()
    except (HiddenPackageError, MissingExtraError) as error:
        if "--debug" in sys.argv:
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
