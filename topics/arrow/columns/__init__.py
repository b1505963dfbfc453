"""One record at a time: its fields into Arrow column builders. Compiled by mypyc."""
