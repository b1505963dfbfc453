"""Named readers: what they report, and what it says."""
