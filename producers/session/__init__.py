"""A producer session: from fencing the predecessor to the first fault, and its supervisor."""
