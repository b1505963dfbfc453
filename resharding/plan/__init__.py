"""`reshard create`: checks everything, then records the plan of a reshard."""
