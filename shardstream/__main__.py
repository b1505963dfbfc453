"""`python -m shardstream`."""

from shardstream.cli import main

main()
