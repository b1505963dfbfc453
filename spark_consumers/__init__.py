"""The merged stream in Spark: a data source, a change log in Delta, and its state.

Applications import `register`, `run_changelog` and the rest from `shardstream`.
"""
