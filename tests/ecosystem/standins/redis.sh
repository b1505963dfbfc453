#!/bin/bash
# As redis: reachable from other containers without a password.
exec "$@" --protected-mode no
