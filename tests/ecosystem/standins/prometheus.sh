#!/bin/bash
# As prom/prometheus: the configuration of /etc/prometheus, data in /prometheus.
exec prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/prometheus
