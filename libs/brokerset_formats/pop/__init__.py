"""What POP writes and says: handles, offset infos, records of check points and acks, names."""
