"""What the broker answers to requests: one module for each subject."""
