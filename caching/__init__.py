"""Fresh reads, and caches that never let an old value back in."""
