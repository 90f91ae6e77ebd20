"""Reports as pages for people: one file each, nothing loaded from elsewhere."""
