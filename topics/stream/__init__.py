"""The merged stream: log readers, delivery and `Subscriber`."""
