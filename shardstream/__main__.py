"""The command `shardstream`, and `python -m shardstream`."""

import gc
import sys

from shardstream.installation import HiddenPackageError, check_packages, missing_extra
from shardstream.process_end import ends_process
from shardstream.stop_signals import take_signals

# As for every error that the caller can fix.
EXIT_USAGE = 2
# 128 + SIGINT, as shells report it.
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; a faulty installation ends it with one line on standard error."""
    with ends_process():
        _run()


def _run() -> None:
    take_signals(sys.argv[1:])
    # Imported objects stay: searching them for garbage would take a twentieth of a start.
    gc.disable()
    try:
        check_packages()
        # Only now, when ours are found.
        from shardstream.commands.app import load_command  # noqa: PLC0415
        from shardstream.commands.app import main as run  # noqa: PLC0415

        load_command(sys.argv[1:])
        gc.freeze()
        gc.enable()
        run()
    except KeyboardInterrupt:  # while the command was being imported
        sys.exit(EXIT_INTERRUPTED)
    except HiddenPackageError as error:
        _end(error)
    except ModuleNotFoundError as error:
        explained = missing_extra(error)
        if explained is None:
            raise
        _end(explained)


def _end(error: ImportError) -> None:
    if "--debug" in sys.argv:
        raise error
    sys.stderr.write(f"error: {error}\n")
    sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
