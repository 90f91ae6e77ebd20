"""Users: what brokers are asked, what is in their Secrets, what is said of them. Pure."""
