"""Unit files of systemd, and manifests for Kubernetes."""
