# Stands in for python:3.12-slim, with what this machine needs to reach its package registries.
ARG ARCHIVE
FROM ${ARCHIVE} AS python
COPY pip.conf /etc/pip.conf
COPY apt.conf /etc/apt/apt.conf.d/99machine
COPY auth.conf /etc/apt/auth.conf
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
