"""What to do about a BrokerSet now; decides, touches nothing."""
