"""Row images, and the records around them."""
