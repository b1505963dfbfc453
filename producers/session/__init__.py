"""One producer session: from fencing its predecessor to the first fault."""
