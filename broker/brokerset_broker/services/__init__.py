"""Work in the background that follows the role of the broker."""
