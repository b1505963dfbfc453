"""`python -m shardstream`."""

from shardstream.commands.app import main

main()
