"""Metrics in Prometheus's form: of the fleet from its topics, of a process from what it counts.

Names follow Prometheus's conventions: base units, `_total`, and Unix seconds for times, so that
`time() - x` is an age. No label holds a GTID or a value of a row.
"""
