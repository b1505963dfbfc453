"""How columns of the target follow those of the source beyond being added and changed."""
