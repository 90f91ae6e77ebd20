"""Taking over from Java RocketMQ, and giving back: `brokerset adopt` and `brokerset upgrade`."""
