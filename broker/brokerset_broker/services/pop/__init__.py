"""What a master does for POP in the background: loading, revival, the progress."""
